// Package postgres is the engine behind package store for several processes on one PostgreSQL database.
//
// Start with [Open]. Package store defines what the methods guarantee; this page explains how the engine keeps the
// guarantees.
//
// # Rows
//
// All tables of data have the same four columns. key and value are bytes that package engine encodes, so PostgreSQL
// orders and compares keys as Go does. num is a number by which rows are found or ordered. due is a time in Unix
// nanoseconds, mostly the end of the row. The table convs has a fifth column, which PostgreSQL computes from due. In a
// transaction of the writer, one function reads rows and one writes them; see txn.go.
//
// # Writing
//
// All writes of a process are units in a queue, one for each call. As in package bolt, a waiting caller commits all
// units that were queued during the previous commit, as one group. A group takes two round trips. The first begins the
// transaction, locks the rows that the units name, in the order of their keys, and reads them. Then each unit is
// planned in Go: it checks its preconditions on the rows as the earlier units of the group left them. The second round
// trip writes the changed rows and commits. If another process created one of the rows or took locks
// in another order, the whole group runs again.
//
// # Unknown outcomes
//
// Each group of a process writes its number to the row of that process in the table lanes. If a connection is lost
// during a commit, the engine reads this number on a new connection. So a caller learns whether its unit was committed,
// even after a failover. The engine never cancels a statement, because PostgreSQL reports success for a commit whose
// wait for the standby was canceled.
//
// # The card index
//
// Each process has an index of all cards in memory. Before a search, the process reads from the feed what changed since
// it last read, so a search finds what another process registered before. Positions in the feed come from a row that a
// group locks until its commit, so the feed has the order of the commits.
//
// # Records that are due
//
// A lane (see [store.Record]) is locked like a counted prefix, and its first two rows and its last one come with the first
// round trip. The heads of lanes have a table of their own, in the order of Due. While another transaction has an old
// snapshot, for example during a dump, PostgreSQL cannot remove the entries of finished heads from the front of its index. So
// each process remembers where the heads began when it last read them, and then reads from there, and what was added
// before that place since: by transactions that had not ended then.
//
// # Leases and hints
//
// Leases are rows and end by the clock of the database. A unit under a lease locks the row of the lease until the
// commit, so that no other process takes the lease meanwhile. Hints are notifications. Each process has a connection
// only to receive them.
package postgres
