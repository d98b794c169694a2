// Package rate shares limited goods fairly among strangers: requests, look-ups, entries of tables, registrations.
//
// The package knows neither what a key means nor what a refusal looks like. Its eight types build on each other:
//
//   - [Buckets] holds a token bucket for each key. While it is full of buckets, a new key waits.
//   - [Allowance] gives every address a bucket. While it is full of buckets, a new address draws from the bucket of
//     its network.
//   - [Penalties] bar addresses that made too many faults, and never an address that made none.
//   - [Pool] is one bucket that all sources share fairly: a source that drew its share leaves the rest to others.
//   - [Registrations] limit the registrations of one address and of everybody.
//   - [Windows] limit what is sent in any minute and in any hour.
//   - [FairTable] shares the entries of a full table: a newcomer displaces an entry of the source that holds most.
//   - [FairQueue] is a queue in which a key with few items does not wait for a key with many.
//
// A bucket is stored as one instant, at which it will be full again (the generic cell rate algorithm), in whole
// nanoseconds. A caller that comes back after exactly the wait that it was given is therefore served, which
// golang.org/x/time/rate, with its fractions of tokens, cannot guarantee. The bucket that is full first may be dropped
// first, because a full bucket is worth as much as none. There are never more buckets than the bound allows. A clock
// that is set back locks nobody out, because a bucket never takes longer to fill up than an empty one.
package rate
