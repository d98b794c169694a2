// Package owner is the owner API: the types of its requests and answers, its operations, their handlers over small
// interfaces, and the client.
//
// An [Endpoint] defines the method, path, types and right of an operation once, for both sides. The answering side
// turns it into an [Operation] with a handler, and a process mounts operations with [Mount]. The calling side makes a
// [Call] from it for a [Client]. The command line uses the client: over the owner's socket or, for a data directory
// that no process serves, with the handlers in its own process. The owner's page uses the interfaces.
//
// The package imports neither the node nor a bridge; both implement its interfaces.
package owner
