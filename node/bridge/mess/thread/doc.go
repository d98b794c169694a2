// Package thread reads, checks, rewrites and writes MESS 1.0.0: blocks of messages, and the state of a thread.
//
// [Parse] reads a block as YAML or JSON into one exact tree under the bounds of MESS-61, and [Block.Check] holds its
// entries to what their types must carry. [Thread] is the state machine of MESS section 5: its methods take one step for
// an actor in a [Role], and refuse what that role may not do. [ThreadFiles] and [ParseFiles] write and read thread files
// (MESSE-AF).
//
// The package stores nothing, sends nothing and opens no file. Refusals are *wire.Error values whose text names entries
// and fields; of the input they quote only short plain names.
package thread
