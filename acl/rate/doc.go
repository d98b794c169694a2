// Package rate shares limited resources fairly among strangers: requests, look-ups, entries of tables, registrations.
// Its types build on each other:
//
//   - [Buckets] holds a token bucket for each key. While it has no room for another bucket, a new key waits.
//   - [Allowance] gives every address a bucket. While it has no room for another one, a new address draws from the
//     bucket of its network.
//   - [Penalties] bar addresses that made too many faults.
//   - [Pool] is one bucket that all sources share fairly: a source that drew its share leaves the rest to others.
//   - [Registrations] limit the registrations of one address and of everybody.
//   - [Windows] limit what is sent in any minute and in any hour.
//   - [FairTable] shares the entries of a full table: a newcomer displaces an entry of the source that holds most.
//   - [FairQueue] is a queue in which a key with few items does not wait for a key with many.
//
// A bucket is stored as the instant at which it will be full again, in whole nanoseconds (the generic cell rate
// algorithm). So a caller that comes back after exactly the required wait is served. A full bucket can be dropped,
// because a key without a bucket gets a full one, so the number of buckets stays bounded. If the clock is set back,
// nobody waits longer than an empty bucket takes to fill.
package rate
