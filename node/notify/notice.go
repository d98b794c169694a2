package notify

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Namespace is where notices are kept.
const Namespace = "notices"

// The kinds of notices that quote a peer: title, time and place of an event that was agreed, and of one that its peer
// cancelled.
const (
	Agreed    = "agreed"
	Cancelled = "cancelled"
)

// Notice is one thing that the owner should know.
type Notice struct {
	ID    string        `json:"id"` // order of ids is order of creation
	Kind  string        `json:"kind"`
	Title string        `json:"title"`
	Text  string        `json:"text,omitempty"`
	At    time.Time     `json:"at"`
	Conv  store.ConvKey `json:"-"`
	Peer  wire.AgentID  `json:"peer,omitempty"`
	Count int           `json:"count,omitempty"` // of how many of its kind this one speaks, beside those that are listed

	Conversation wire.ConversationID `json:"conversation_id,omitempty"` // of Conv
}

const (
	maxTitle = 120 // characters
	maxText  = 300
)

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

// waiting is a notice that the target has not got yet, as it was read.
type waiting struct {
	Notice
	rec store.Record
}

// told is the change that takes its mark away, unless it grew meanwhile.
func (w waiting) told() store.Change {
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
