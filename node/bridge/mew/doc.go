// Package mew brings MEW v0.4 to the node. It mounts the routes that MEW clients call. It also has the owner's
// operations and pages for the spaces that a [gateway.Gateway] hosts here and for those that a [link.Bridge] has joined.
//
// docs/bridges/mew.md maps MEW to AgentMesh. Comments cite rules such as MEW-1 from docs/bridges/mew-checklist.md.
package mew
