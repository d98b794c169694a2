package envelope

import (
	"cmp"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Draft is an envelope that a participant is about to send. [Draft.JSON] adds the protocol and the sender.
type Draft struct {
	ID, Kind    string
	Time        time.Time // zero: the time of [Draft.JSON]
	To          []string
	Correlation []string
	Context     string
	Payload     wire.Value
}

// JSON returns the envelope as JSON, from this sender.
func (d Draft) JSON(from string) []byte {
	o := Outgoing{From: from, Kind: d.Kind, To: d.To, Correlation: d.Correlation, Context: d.Context, Payload: d.Payload}
	return o.Append(nil, d.ID, FormatTime(cmp.Or(d.Time, time.Now())))
}

// RequestFor returns the JSON-RPC request that carries out a proposal: the proposal's payload, with jsonrpc and a new
// id.
func RequestFor(proposal wire.Value) wire.Value {
	members := []wire.Member{wire.TextField("jsonrpc", "2.0"), wire.TextField("id", NewID())}
	for _, m := range proposal.Members() {
		if m.Key != "jsonrpc" && m.Key != "id" {
			members = append(members, m)
		}
	}
	return wire.Obj(members...)
}
