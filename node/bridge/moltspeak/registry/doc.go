// Package registry is the MoltSpeak registry: a list of agents with their keys and endpoints.
//
// [Server] serves one, with the cards of a directory and the agents that register. [Registrar] keeps our agent listed
// in the registries of others, and looks up agents and keys there.
package registry
