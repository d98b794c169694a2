// Package bolt is the embedded engine behind package store: one bbolt file, one process, one writer.
//
// Start with [Open]. bbolt is the source of truth. The index that finds cards by their terms lives in memory. Package
// store defines what the methods guarantee; this page explains how the engine keeps the guarantees.
//
// # Writing
//
// All writes are units in a queue. One of the waiting callers leads: it commits all units that queued during the
// previous commit. A lone caller thus waits for nobody, and many callers share one fsync. A unit is first planned
// (every check, no write) and then written; a refusal or a panic fails that unit alone. After the commit, the leader
// applies the changes of the index in commit order, and only then returns the outcomes to the callers. After a failed
// commit, all writes fail with store.ErrUnavailable until the engine has reopened the file by itself. Reads continue.
//
// # Reading
//
// Reads are short bbolt transactions. No slice that belongs to bbolt outlives its transaction. List gathers candidates
// from the index under a read lock, releases the lock, and then judges each card by its row. The index may offer too
// many cards, never too few.
//
// # The index file
//
// "<path>.index" is a snapshot of the index and only an optimization. The database names the snapshots that are valid
// for it, and the change feed brings a loaded snapshot up to date. If the snapshot is missing, damaged or not valid,
// the engine builds the index from the cards.
//
// See schema.go for the buckets and row.go for the encoding of rows. To change a format, add a migration in migrate.go
// or a new version of a row.
package bolt
