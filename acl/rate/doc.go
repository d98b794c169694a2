// Package rate divides what strangers share: requests, look-ups, places, registrations.
//
// It knows neither what a key means nor what a refusal says. Eight types build on each other:
//
//   - [Buckets] are token buckets by key. At their bound an unknown key waits.
//   - [Allowance] gives every address a bucket. At its bound an unknown address draws from the bucket of its network.
//   - [Penalties] bar addresses that made too many faults, and never an address that made none.
//   - [Pool] is one bucket that all sources share fairly: a source that drew much leaves the rest to others.
//   - [Registrations] limit those of one address and those of everybody.
//   - [Windows] limit what is sent in any minute and in any hour.
//   - [Crowd] shares the places of a table that is full: a newcomer takes a place of the source that has most.
//   - [Turns] is a queue in which those who put in little do not wait for those who put in a lot.
//
// A bucket is kept as one instant, the one at which it will be full again (the generic cell rate algorithm), in
// whole nanoseconds: a caller that comes back after exactly the wait it was told is served, which
// golang.org/x/time/rate, with its fractions of tokens, cannot promise. That instant is also the order in which buckets
// may be forgotten, because a full bucket is worth as much as none. There are never more buckets than the bound says, and
// clocks that are set back lock nobody out: a bucket never owes more than an empty one.
package rate
