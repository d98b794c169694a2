// Package bolt is the embedded engine behind package store: one bbolt file, one process, one writer.
//
// Start with [Open]. bbolt is the source of truth; the index that finds cards by their terms lives in memory.
// Package store says what the methods promise; this page says how the promises are kept.
//
// # Writing
//
// All writes are units that queue. One of the callers that wait leads: it commits whatever has queued while the
// last commit ran, so a lone sender waits for nobody and many senders share one fsync. A unit is planned (every
// check, no write) and then written; a refusal or a panic costs that unit alone. After the commit the changes of the
// index are applied in commit order, and only then is anybody told. A commit that fails stops all writes, with
// store.ErrUnavailable, until the engine has opened the file anew by itself; reads go on.
//
// # Reading
//
// Reads are short bbolt transactions; nothing that bbolt lends outlives one. [Store.List] gathers candidates
// from the index under a read lock, lets go of it, and then judges each card by its row: the index may offer
// too much, never too little.
//
// # Beside the file
//
// "<path>.index" is a snapshot of the index. It is an optimisation: the database names the snapshot that it
// descends from, the change log brings it up to date, and where it is missing, damaged or a stranger's, the
// index is built from the cards.
//
// See schema.go for the buckets and row.go for the encoding of rows. A format is changed by a migration in
// schema.go or by a new version of a row.
package bolt
