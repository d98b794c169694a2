package notify

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Namespace is the record namespace of notices.
const Namespace = "notices"

// The kinds of notices that contain text of a message: the title, time and place of an agreed or a cancelled event.
const (
	Agreed    = "agreed"
	Cancelled = "cancelled"
)

// Notice is one thing that the owner should know.
type Notice struct {
	// ID contains the time of creation, so ids sort by it. If Count is set, ID contains the beginning of the counted
	// hour instead.
	ID    string        `json:"id"`
	Kind  string        `json:"kind"`
	Title string        `json:"title"`
	Text  string        `json:"text,omitempty"`
	At    time.Time     `json:"at"`
	Conv  store.ConvKey `json:"-"`
	Peer  wire.AgentID  `json:"peer,omitempty"`
	Count int           `json:"count,omitempty"` // number of notices of this kind that this one replaces

	Conversation wire.ConversationID `json:"conversation_id,omitempty"` // of Conv
	Ask          string              `json:"ask,omitempty"`             // the question that the notice is about
	Link         string              `json:"link,omitempty"`            // where the owner can decide; set only for a target
}

const (
	maxTitle = 120 // characters
	maxText  = 300
)

// showHidden writes invisible characters as their code, as the owner's page does: "[U+202E]".
func showHidden(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "[U+%04X]", r)
		}
	}
	return b.String()
}

func newID(at time.Time) string {
	return fmt.Sprintf("note_%012x%s", at.UnixMilli(), strings.ToLower(rand.Text()[:8]))
}

func (n Notice) record(keep time.Duration) store.Record {
	return store.Record{NS: Namespace, Key: n.ID, Body: wire.MustMarshal(n), Expires: n.At.Add(keep)}
}

// termTodo marks the notices that the target has not received yet.
const termTodo = "todo"

// The parties of the notices for the target. Quiet hours close only the second.
const (
	partyUrgent = "urgent"
	partyOther  = "other"
)

// pendingNotice is a notice that the target has not received yet, with its record.
type pendingNotice struct {
	Notice
	rec store.Record
}

// clearMark removes the todo mark of the notice. It fails if the notice changed since it was read.
func (p pendingNotice) clearMark() store.Change {
	rec := p.rec
	rec.Terms, rec.Due = nil, time.Time{}
	return store.Change{Record: rec, IfRev: p.rec.Rev}
}

func decode(body []byte) (Notice, error) {
	var n Notice
	if err := json.Unmarshal(body, &n); err != nil {
		return Notice{}, fmt.Errorf("decode notice: %w", err)
	}
	n.Conv = store.ConvKey{Peer: string(n.Peer), ID: string(n.Conversation)}
	return n, nil
}
