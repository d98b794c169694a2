package owner

import (
	"context"
	"encoding/json"
	"strings"
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

// summaryOf returns one line about a payload: one of the usual text members, or else the first text in the other
// members.
func summaryOf(payload json.RawMessage) string {
	v, err := wire.ParseObject(payload)
	if err != nil {
		return ""
	}
	for _, path := range []string{
		"message.subject", "message.body", "question", "info", "event.title", "terms.description", "message", "subject", "reason", "text",
	} {
		if text := textAt(v, path); text != "" {
			return wire.OneLine(text, maxSummary)
		}
	}
	return wire.OneLine(firstText(v.Without("action", "metadata"), 8), maxSummary)
}

// textAt returns the string at a path of member names, such as "event.title", or "".
func textAt(v wire.Value, path string) string {
	first, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		return v.GetStr(first)
	}
	inner, _ := v.Get(first)
	return textAt(inner, rest)
}

// firstText returns the first string in v that is not empty and not nested deeper than maxDepth.
func firstText(v wire.Value, maxDepth int) string {
	if text, ok := v.Str(); ok || maxDepth == 0 {
		return text
	}
	for _, m := range v.Members() {
		if text := firstText(m.Value, maxDepth-1); text != "" {
			return text
		}
	}
	for e := range v.Elems() {
		if text := firstText(e, maxDepth-1); text != "" {
			return text
		}
	}
	return ""
}
