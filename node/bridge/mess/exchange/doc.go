// Package exchange is a MESS exchange: it keeps threads, executors and routing rules in store Records, and [Exchange.Do] takes
// one block of one actor through the state machine as one transaction.
//
// What holds everywhere: nothing leaves a terminal state, a refused block changes nothing (MESS-7), nothing remote is fetched on
// receipt (MESS-63), and files are opened only through an os.Root (MESS-64). The package knows no door: REST, thread files, the
// mesh and links call the same methods as an actor.
package exchange
