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

// The kinds of notices that contain text of a message: the title, time and place of an agreed event, or of one that the
// peer cancelled.
const (
	Agreed    = "agreed"
	Cancelled = "cancelled"
)

// Notice is one thing that the owner should know.
type Notice struct {
	// ID contains the time of creation, so ids sort by it. If Count is set, ID has the beginning of the counted hour.
	ID    string        `json:"id"`
	Kind  string        `json:"kind"`
	Title string        `json:"title"`
	Text  string        `json:"text,omitempty"`
	At    time.Time     `json:"at"`
	Conv  store.ConvKey `json:"-"`
	Peer  wire.AgentID  `json:"peer,omitempty"`
	Count int           `json:"count,omitempty"` // number of notices of its kind that this one replaces; 0: it replaces none

	Conversation wire.ConversationID `json:"conversation_id,omitempty"` // the id in Conv
	Ask          string              `json:"ask,omitempty"`             // the id of the question that the notice is about
	Link         string              `json:"link,omitempty"`            // URL where the owner can decide; set only in what a target gets
}

const (
	maxTitle = 120 // characters
	maxText  = 300
)

// showHidden writes characters without a visible form as their code, as the owner's page does: "[U+202E]".
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
	body, err := json.Marshal(n)
	if err != nil {
		panic(fmt.Sprintf("notify: encode: %v", err)) // only fields we filled
	}
	return store.Record{NS: Namespace, Key: n.ID, Body: body, Expires: n.At.Add(keep)}
}

// termTodo marks the notices that the target has not got yet.
const termTodo = "todo"

// pendingNotice is a notice that the target has not got yet, with the record from which it was read.
type pendingNotice struct {
	Notice
	rec store.Record
}

// clearMark returns the change that removes the todo mark of the notice. It fails if the notice has changed since it
// was read.
func (w pendingNotice) clearMark() store.Change {
	rec := w.rec
	rec.Terms = nil
	return store.Change{Record: rec, IfRev: w.rec.Rev}
}

func decode(body []byte) (Notice, error) {
	var n Notice
	if err := json.Unmarshal(body, &n); err != nil {
		return Notice{}, fmt.Errorf("decode notice: %w", err)
	}
	n.Conv = store.ConvKey{Peer: string(n.Peer), ID: string(n.Conversation)}
	return n, nil
}
