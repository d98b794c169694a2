// Package mew brings MEW v0.4 to the node. It mounts the routes that MEW clients call. It also shows the owner the
// spaces that a [gateway.Gateway] hosts here and those that a [link.Bridge] joined, as operations and as pages.
//
// docs/bridges/mew.md maps the protocol to these packages, rule by rule.
package mew
