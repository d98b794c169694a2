// Package bolt is the embedded engine behind package store: one bbolt file, one process, one writer.
//
// Start with [Open]. bbolt is the source of truth. The index that finds cards by their terms lives in memory. Package
// store defines what the methods guarantee; this page explains how the engine keeps the guarantees.
//
// # Writing
//
// All writes are units in a queue. One of the waiting callers is the leader: it commits all units that were queued
// during the previous commit. So a single caller waits for nobody, and many callers share one fsync. Each unit is first
// planned, with all checks but without writes, and then written. A unit that is refused or panics fails alone. After
// the commit, the leader applies the changes of the index in commit order, and only then returns the outcomes to the
// callers. After a failed commit, all writes fail with store.ErrUnavailable until the engine has reopened the file by
// itself. Reads continue.
//
// # Reading
//
// Reads are short bbolt transactions. No slice that belongs to bbolt outlives its transaction. List gathers candidates
// from the index under a read lock, releases the lock, and then reads the row of each candidate. It checks the terms of the
// rows if a change of a card was committed meanwhile, because then a card may no longer match.
//
// Open builds the index from the cards.
//
// See schema.go for the buckets and package engine for the encoding of rows.
package bolt
