package owner

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// NewApproval returns the question with all messages that are decided with it.
func NewApproval(ctx context.Context, asks *acl.Asks, ask acl.Ask) (Approval, error) {
	v := Approval{Ask: ask}
	var about struct {
		Name    string          `json:"name"`
		Payload json.RawMessage `json:"payload"`
	}
	if json.Unmarshal(ask.Body, &about) == nil { // a bridge's question may have a different body
		v.Name, v.Summary = wire.OneLine(about.Name, 100), summaryOf(about.Payload)
	}
	if ask.Kind != AskMessage {
		return v, nil
	}
	tail, err := asks.Tail(ctx, ask, time.Now())
	if err != nil {
		return v, err
	}
	for i, a := range append([]acl.Ask{ask}, tail...) {
		m := HeldMessage{Ask: a.ID, Hash: a.Hash, Conversation: wire.ConversationID(a.Conv.ID), At: a.Created}
		if i == 0 && a.OwnHash != "" { // Hash also covers the messages behind the first one
			m.Hash = a.OwnHash
		}
		if err := json.Unmarshal(a.Body, &m); err != nil {
			return v, err
		}
		m.Summary = summaryOf(m.Payload)
		v.Messages = append(v.Messages, m)
	}
	return v, nil
}

const maxSummary = 160 // characters

// summaryOf returns one line about a payload.
func summaryOf(payload json.RawMessage) string {
	if len(payload) == 0 {
		return ""
	}
	return wire.OneLine(Say(payload, false).Words(), maxSummary)
}
