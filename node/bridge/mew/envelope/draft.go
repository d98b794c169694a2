package envelope

import (
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Draft is an envelope that a participant is about to send. [Draft.JSON] adds the protocol, the time and the sender.
type Draft struct {
	ID, Kind    string
	To          []string
	Correlation []string
	Context     string
	Payload     wire.Value
}

// JSON returns the envelope as JSON, with the current time and this sender.
func (s Draft) JSON(from string) []byte {
	o := Outgoing{From: from, Kind: s.Kind, To: s.To, Correlation: s.Correlation, Context: s.Context, Payload: s.Payload}
	return o.Append(nil, s.ID, FormatTime(time.Now()))
}

// RequestFor returns the JSON-RPC request for a proposal's payload, with new members jsonrpc and id.
func RequestFor(proposal wire.Value) wire.Value {
	members := []wire.Member{wire.TextField("jsonrpc", "2.0"), wire.TextField("id", NewID())}
	for _, m := range proposal.Members() {
		if m.Key != "jsonrpc" && m.Key != "id" {
			members = append(members, m)
		}
	}
	return wire.Obj(members...)
}

// Digest returns a short hash of the parts.
func Digest(parts ...string) string { return wire.HashOf(append(parts, "")...) }
