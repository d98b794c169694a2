// Package thread reads, checks, rewrites and writes MESS 1.0.0: blocks of entries, and the state of a thread.
//
// [Parse] reads a block from YAML or JSON into an exact tree, within the limits of MESS-61; [Block.Check] checks that
// each entry has what its type requires. [Thread] is the state machine of MESS section 5: each method takes one step
// for an actor in a [Role], and refuses what that role may not do. [ThreadFiles] and [ParseFiles] write and read thread
// files (MESSE-AF).
//
// The package stores nothing, sends nothing and opens no file. Refusals are *wire.Error values. Their texts name
// entries and fields, and quote only short plain names from the input.
package thread
