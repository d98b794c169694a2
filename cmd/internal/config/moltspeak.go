package config

import (
	"cmp"
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

// MoltSpeak configures the node as a MoltSpeak agent: POST /moltspeak/v0.1/message and /batch, WebSocket /stream.
type MoltSpeak struct {
	// Serve the endpoint to others: on, off, or auto, which means on without a public_url. agentmesh bridge enable
	// moltspeak sets it.
	Serve string `key:"serve" default:"off" oneof:"auto,on,off"`
	// Name of the agent: A-Z a-z 0-9 _ and -. Empty: the agent id, which then must not contain a dot.
	Agent string `key:"agent"`
	// Name of the agent's organization. Danger: agents of the same organization may hand it secrets.
	Org string `key:"org" default:"agentmesh"`
	// Domains of queries that go to the hook of xyz.moltspeak.query. Other queries arrive as mesh.request_info.
	Domains []string `key:"domains"`
	// Tools that peers may list and call. A hook of xyz.moltspeak.tool runs them.
	Tools []MoltSpeakTool `key:"tools"`
	// Peers (agent@org) whose confidential messages may be unencrypted. If such a peer has no key, the node also sends it
	// confidential messages unencrypted.
	PlainConf []string `key:"plain_conf"`
	// Peers (agent@org) whose personal data reaches inbox and hooks unmasked.
	// Danger: the inbox then also stores and shows that data.
	Reveal []string `key:"reveal"`
	// A program and its arguments. It reads, as JSON on standard input, secrets from those agents of the same organization
	// that you have allowed, and answers with JSON. Empty: the node refuses secrets.
	SecretCommand []string `key:"secret_command"`
	// Origins of web pages that may open the WebSocket, besides the listener's own origin.
	Origins []string `key:"origins"`
	// Serve a MoltSpeak registry under /api/v1/agents and /api/v1/search: on or off. It has the directory's cards, and the
	// agents that register with it.
	Registry string `key:"registry" default:"off" oneof:"on,off"`
	// How entries of the registry are protected: token (a bearer token for each entry, which its client chooses) or none.
	// Danger: with none, anyone can change and delete every entry. Use none only for development.
	RegistryAuth string `key:"registry_auth" default:"token" oneof:"token,none"`
}

// MoltSpeakTool is a tool that the node offers.
type MoltSpeakTool struct {
	// The tool's name.
	Name string `key:"name"`
	// A description of the tool, for peers that list the tools.
	Description string `key:"description"`
	// Peers (agent@org) that may call the tool without asking you. Empty: you decide on every call.
	Peers []string `key:"peers"`
}

func (c MoltSpeak) check(p *problems) {
	if _, ok := message.ParseName("x@" + c.Org); !ok {
		p.add("moltspeak.org", "must be 1 to 128 characters from A-Z a-z 0-9 _ -")
	}
	if _, ok := message.ParseName(c.Agent + "@x"); !ok && c.Agent != "" {
		p.add("moltspeak.agent", "must be 1 to 128 characters from A-Z a-z 0-9 _ -")
	}
	checkPeers := func(key string, list []string) {
		for i, name := range list {
			if _, ok := message.ParseName(name); !ok {
				p.add(fmt.Sprintf("%s[%d]", key, i), "must be agent@org")
			}
		}
	}
	checkPeers("moltspeak.plain_conf", c.PlainConf)
	checkPeers("moltspeak.reveal", c.Reveal)
	for i, t := range c.Tools {
		key := fmt.Sprintf("moltspeak.tools[%d]", i)
		if t.Name == "" || len(t.Name) > 256 {
			p.add(key+".name", "must have 1 to 256 bytes")
		}
		checkPeers(key+".peers", t.Peers)
	}
}

// MoltSpeakAgent returns the name under which MoltSpeak agents know the node, and whether the node serves them.
// MoltSpeak names have no dots: if the agent id has one, moltspeak.agent must set a name (MS-22).
func (c Config) MoltSpeakAgent(id wire.AgentID) (agent message.Agent, serve bool) {
	name := cmp.Or(c.MoltSpeak.Agent, string(id))
	agent, valid := message.ParseName(name + "@" + c.MoltSpeak.Org)
	if !valid {
		agent = message.Agent{Agent: name, Org: c.MoltSpeak.Org}
	}
	return agent, c.MoltSpeak.Serve == "on" || c.MoltSpeak.Serve == "auto" && !c.Public() && valid
}
