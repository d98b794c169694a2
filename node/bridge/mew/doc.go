// Package mew brings MEW v0.4 to the node. It mounts the routes that MEW clients call. It also shows the owner the
// spaces that a [gateway.Gateway] hosts here and those that a [link.Bridge] joined, as operations and as pages.
//
// docs/bridges/mew.md maps MEW to AgentMesh. docs/bridges/mew-checklist.md has the rules whose numbers comments cite.
package mew
