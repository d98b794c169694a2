// Package mew connects the node to MEW v0.4, a protocol for spaces that people and agents share. It mounts the routes
// that MEW clients call, and has the owner's operations and pages for the spaces that a [gateway.Gateway] hosts here and
// for those that a [link.Bridge] has joined.
//
// docs/bridges/mew.md maps MEW to AgentMesh. Comments cite rules such as MEW-1 from docs/conformance/mew.txt.
package mew
