// Package mess is an exchange for MESS 1.0.0 (requests for the physical world, done by whoever can: a person, a robot,
// a service), and the bridge between it and AgentMesh.
//
// It has three parts, each usable without the ones after it; what MESS itself says is package thread. The exchange:
// [Exchange] keeps threads, executors and routing rules in store Records, and [Exchange.Do] takes one block of one actor
// through the state machine as one transaction. Its doors: the REST routes that existing servers and clients speak, the
// owner API, and thread files in a mirrored directory (MESSE-AF). The bridge: [Bridge] offers requests to agents of the
// mesh, takes theirs, and is the client of foreign exchanges.
//
// What holds everywhere: nothing leaves a terminal state, a refused block changes nothing (MESS-7), nothing remote is
// fetched on receipt (MESS-63), and files are opened only through an os.Root (MESS-64). The package has no access rules,
// limits or approvals of its own beyond what its protocol requires: what comes from the mesh or a link enters through
// bridge.Receiver.
package mess
