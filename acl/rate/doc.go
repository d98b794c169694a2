// Package rate shares limited goods fairly among strangers: requests, look-ups, places, registrations.
//
// The package knows neither what a key means nor what a refusal looks like. Its eight types build on each other:
//
//   - [Buckets] are token buckets by key. At their bound, a key without a bucket waits.
//   - [Allowance] gives every address a bucket. At its bound, an address without a bucket draws from the bucket of its
//     network.
//   - [Penalties] bar addresses that made too many faults, and never an address that made none.
//   - [Pool] is one bucket that all sources share fairly: a source that drew much leaves the rest to others.
//   - [Registrations] limit the registrations of one address and of everybody.
//   - [Windows] limit what is sent in any minute and in any hour.
//   - [Crowd] shares the places of a full table: a newcomer takes a place of the source that has the most.
//   - [Turns] is a queue in which a key with few items does not wait for a key with many.
//
// A bucket is stored as one instant, at which it will be full again (the generic cell rate algorithm), in whole
// nanoseconds. A caller that comes back after exactly the wait that it was given is therefore served, which
// golang.org/x/time/rate, with its fractions of tokens, cannot guarantee. That instant is also the order in which
// buckets may be dropped, because a full bucket is worth as much as none. There are never more buckets than the bound
// allows. Clocks that are set back lock nobody out, because a bucket never owes more than all its tokens.
package rate
