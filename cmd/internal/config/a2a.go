package config

// A2A configures the node as an A2A 1.0 agent: the card at /.well-known/agent-card.json, and /a2a/v1 for JSON-RPC and
// HTTP+JSON. Writing to other A2A agents needs no configuration.
type A2A struct {
	// Serve A2A to callers with a token from agentmesh a2a token: on or off.
	Serve string `key:"serve" default:"off" oneof:"on,off"`
	// Also serve callers without a token, for tests of the protocol. The node treats all of them as one stranger.
	// Danger: these callers see each other's messages and answers.
	Anonymous bool `key:"anonymous"`
}
