package mew

import "github.com/agentmesh/agentmesh/node/bridge"

// Losses is what a mesh.message loses as a chat; docs/bridges/mew.md has the whole list.
func Losses() []bridge.Loss {
	return []bridge.Loss{
		{Field: "payload.message.priority", Reason: "a chat has none"},
		{Field: "payload.message.reply_requested", Reason: "a chat has no such mark"},
		{Field: "payload.metadata", Reason: "extensions are not said in a space"},
	}
}
