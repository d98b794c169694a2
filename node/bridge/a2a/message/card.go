package message

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The well-known paths of a card (A2A-1) and of its keys (A2A-D5). Older clients ask for the second path.
const (
	PathCard    = "/.well-known/agent-card.json"
	PathOldCard = "/.well-known/agent.json"
	PathKeys    = "/.well-known/jwks.json"
)

// CardInfo is what an agent card is made from.
type CardInfo struct {
	Card       wire.Card
	URL        string // of both interfaces
	Directory  string // the directory that lists the card; "" for none
	Version    string // of the program
	NeedsToken bool   // callers need a bearer token
	Streaming  bool
	Push       bool
	Extended   bool
}

// NewCard returns the agent card for a card of the mesh (A2A-2), with a skill for each capability and our extension.
func NewCard(i CardInfo) a2a.AgentCard {
	c := i.Card
	text := cmp.Or(c.Description, c.Name+", an agent of the mesh")
	digest := signing.Digest(c.Tree)
	params := map[string]any{"agent_id": string(c.ID), "key": c.PublicKey, "card_digest": "sha256:" + hex.EncodeToString(digest[:])}
	if i.Directory != "" {
		params["directory"] = i.Directory
	}
	card := a2a.AgentCard{
		Name: c.Name, Description: text, Version: i.Version,
		DefaultInputModes:  inputModes,
		DefaultOutputModes: []string{"text/plain", "application/json"},
		Capabilities: a2a.AgentCapabilities{
			Streaming: i.Streaming, PushNotifications: i.Push, ExtendedAgentCard: i.Extended,
			Extensions: []a2a.AgentExtension{{
				URI: Extension, Description: "the agent of the mesh behind this card, and its own intents", Params: params,
			}},
		},
	}
	for _, version := range []a2a.ProtocolVersion{a2a.Version, oldVersion} {
		for _, binding := range []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON} {
			card.SupportedInterfaces = append(card.SupportedInterfaces, &a2a.AgentInterface{URL: i.URL, ProtocolBinding: binding, ProtocolVersion: version})
		}
	}
	if i.NeedsToken {
		card.SecuritySchemes = a2a.NamedSecuritySchemes{"bearer": a2a.HTTPAuthSecurityScheme{
			Scheme: "Bearer", Description: "a token from the owner of this agent",
		}}
		// The card leaves out securityRequirements: the SDKs for Go and JavaScript disagree about its form and refuse
		// each other's.
	}
	tags := []string{}
	for _, intent := range c.Intents {
		tags = append(tags, string(intent))
	}
	if len(tags) == 0 {
		tags = append(tags, string(wire.Deliver))
	}
	for _, capability := range c.Capabilities {
		card.Skills = append(card.Skills, a2a.AgentSkill{ID: capability, Name: capability, Description: text, Tags: tags})
	}
	if len(card.Skills) == 0 {
		card.Skills = []a2a.AgentSkill{{ID: "message", Name: "message", Description: text, Tags: tags}}
	}
	return card
}

// Tree returns the JSON tree of a card.
func Tree(card a2a.AgentCard) (wire.Value, error) {
	data, err := json.Marshal(card)
	if err != nil {
		return wire.Value{}, err
	}
	return wire.Parse(data)
}

// MaxCard is the largest card of another agent in bytes.
const MaxCard = 256 << 10

// ReadCard reads the card of another agent as a tree. It does not decode the card into the type of the SDK, which
// refuses the security requirements that other SDKs write.
func ReadCard(data []byte) (wire.Value, error) {
	tree, err := wire.ParseForeign(data, maxDepth, maxValues)
	if err == nil && tree.Kind() != wire.Object {
		err = errors.New("the card is not a JSON object")
	}
	return tree, err
}
