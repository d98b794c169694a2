package node

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// AskView is a question as the owner is shown it: who it is about, what is said, and every message it is about.
type AskView struct {
	acl.Ask
	Name     string       `json:"name,omitempty"`    // as the other side calls itself: untrusted
	Summary  string       `json:"summary,omitempty"` // the words or the subject of the first message, on a line: untrusted
	Messages []AskMessage `json:"messages,omitempty"`
}

// AskMessage is one of the messages that a question is about.
type AskMessage struct {
	Ask          string              `json:"ask"`
	Hash         string              `json:"hash"` // of its canonical bytes
	Conversation wire.ConversationID `json:"conversation_id"`
	At           time.Time           `json:"at"`
	Summary      string              `json:"summary,omitempty"`
	heldMessage
}

// viewAsk returns the question with all that is decided with it.
func (n *Node) viewAsk(ctx context.Context, ask acl.Ask) (AskView, error) {
	v := AskView{Ask: ask}
	var about struct {
		Name    string          `json:"name"`
		Payload json.RawMessage `json:"payload"`
	}
	if json.Unmarshal(ask.Body, &about) == nil { // else a bridge's own
		v.Name, v.Summary = wire.OneLine(about.Name, 100), summaryOf(about.Payload)
	}
	if ask.Kind != askMessage {
		return v, nil
	}
	tail, err := n.asks.Tail(ctx, ask, time.Now())
	if err != nil {
		return v, err
	}
	for i, a := range append([]acl.Ask{ask}, tail...) {
		m := AskMessage{Ask: a.ID, Hash: a.Hash, Conversation: wire.ConversationID(a.Conv.ID), At: a.Created}
		if i == 0 && a.OwnHash != "" {
			m.Hash = a.OwnHash
		}
		if err := json.Unmarshal(a.Body, &m.heldMessage); err != nil {
			return v, err
		}
		m.Summary = summaryOf(m.Payload)
		v.Messages = append(v.Messages, m)
	}
	return v, nil
}

// viewAsks is viewAsk for a list.
func (n *Node) viewAsks(ctx context.Context, asks []acl.Ask) ([]AskView, error) {
	views := make([]AskView, 0, len(asks))
	for _, ask := range asks {
		v, err := n.viewAsk(ctx, ask)
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return views, nil
}

// Who returns the party that the question is about, for people: its name, or its id if it has none and, for a peer behind
// a link, the network. The text is untrusted.
func (v AskView) Who() string {
	name := v.Name
	if a, err := bridge.ParseAddress(v.address()); err == nil {
		if name == "" {
			name = a.Peer
		}
		return name + " (" + a.Kind + ":" + a.Link + ")"
	}
	if name == "" {
		return v.Subject
	}
	return name
}

// address returns the foreign address of whom the question is about, "" for an agent of the mesh.
func (v AskView) address() string {
	if len(v.Messages) > 0 {
		return v.Messages[0].Address
	}
	return v.Subject
}

// Says returns what the question is about on a line: what is said, or our title if nobody says anything. It is untrusted
// text.
func (v AskView) Says() string {
	if v.Summary == "" {
		return v.Title
	}
	return v.Summary
}

// maxSummary is the length of a summary in bytes.
const maxSummary = 160

// summaryOf returns what a payload says on a line: its subject or words, or else the first text in it.
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

func textAt(v wire.Value, path string) string {
	first, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		return v.GetStr(first)
	}
	inner, _ := v.Get(first)
	return textAt(inner, rest)
}

// firstText returns the first text inside a value, at most so many levels deep.
func firstText(v wire.Value, levels int) string {
	if text, ok := v.Str(); ok || levels == 0 {
		return text
	}
	switch v.Kind() {
	case wire.Object:
		for _, m := range v.Members() {
			if text := firstText(m.Value, levels-1); text != "" {
				return text
			}
		}
	case wire.Array:
		for i := range v.Len() {
			if text := firstText(v.At(i), levels-1); text != "" {
				return text
			}
		}
	}
	return ""
}
