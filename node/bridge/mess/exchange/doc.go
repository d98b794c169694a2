// Package exchange implements a MESS exchange. It keeps threads, executors and routing rules in store Records;
// [Exchange.Do] applies one block (a list of MESS entries) of one actor as one transaction of the store.
//
// Invariants: no thread leaves a terminal state, a refused block changes nothing (MESS-7), the exchange fetches nothing
// remote when it receives a block (MESS-63), and files are opened only through an os.Root (MESS-64). The package knows
// nothing about transports: REST, thread files, the mesh and links call the same methods with different actors.
package exchange
