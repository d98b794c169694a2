// Package mess connects a MESS 1.0.0 exchange to AgentMesh. MESS carries requests for work in the physical world to
// executors: a person, a robot or a service.
//
// [Bridge] offers the requests of an exchange to mesh agents and to the owner, accepts requests from agents, and is the
// client of foreign exchanges (links). In comments about links, "theirs" and "their exchange" mean the foreign
// exchange, and "ours" means the exchange of this node. The other parts of MESS are packages of their own: thread has
// the blocks and the state machine, exchange keeps the threads, rest serves them over HTTP, and folder mirrors them as
// files.
//
// This package has no access rules, limits or approvals beyond what its protocol requires: every message from the mesh
// or a link passes bridge.Receiver first.
package mess
