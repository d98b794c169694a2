package thread

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Thread is the state of one request (MESS-16). What was said in it is kept beside it as [Message] records.
type Thread struct {
	Ref       string `json:"ref"`
	ClientID  string `json:"client_id,omitempty"`
	Requester string `json:"requester"`
	Holder    string `json:"holder,omitempty"`
	Status    Code   `json:"status"`

	Intent    string `json:"intent"`
	Priority  string `json:"priority"`
	Precision string `json:"precision,omitempty"`
	Urgency   string `json:"urgency,omitempty"`
	Requires  []Need `json:"requires,omitempty"`

	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	Ended   time.Time `json:"ended,omitzero"` // when completed or partial was set (MESS-39)

	NotBefore time.Time `json:"not_before,omitzero"`
	Deadline  time.Time `json:"deadline,omitzero"` // MESS-15, MESS-32
	DependsOn []string  `json:"depends_on,omitempty"`

	ConfirmBefore bool `json:"confirm_before,omitempty"` // MESS-25
	Confirmed     bool `json:"confirmed,omitempty"`
	Refused       bool `json:"refused,omitempty"` // the requester said no to a needs_confirmation

	// Parked says why the exchange itself made the thread wait, and may make it received again.
	Parked   string   `json:"parked,omitempty"`
	Declined []string `json:"declined,omitempty"` // executors who declined before a claim (MESS-24)
	Only     string   `json:"only,omitempty"`     // the one executor it is offered to (MESS-27)

	Questions   []Question   `json:"questions,omitempty"`   // of the needs_input that stands
	Suggestions []Suggestion `json:"suggestions,omitempty"` // newest last
	Successors  []string     `json:"successors,omitempty"`  // threads that took its place

	History  []Event `json:"history"`
	Serial   int     `json:"serial"`          // of the newest message
	Bytes    int     `json:"bytes,omitempty"` // of its messages, attachments apart
	Taken    int     `json:"taken,omitempty"` // bytes of attachments that were taken over from a foreign thread
	Version  uint64  `json:"version"`
	Expired  string  `json:"stage,omitempty"` // the state in which it expired
	Offered  bool    `json:"offered,omitempty"`
	External string  `json:"external,omitempty"` // the conversation that it came in, for the bridge

	// Peers are the agents of the mesh and of links that take part, each in a conversation of its own.
	Peers map[string]Peer `json:"peers,omitempty"`

	Rev store.Rev `json:"-"` // of the stored row
}

// Peer is where somebody of the mesh, or behind a link, is told of a thread.
type Peer struct {
	Conv    string `json:"conv"`
	Address string `json:"address,omitempty"`
	Offered bool   `json:"offered,omitempty"` // it may claim
	Name    string `json:"name,omitempty"`    // what it knows the thread by
}

// Why a thread is parked.
const (
	ParkedDependency = "dependency"
	ParkedSchedule   = "schedule"
	ParkedApproval   = "approval"
	ParkedPeer       = "peer"    // the exchange of a peer that it was sent to holds it
	ParkedPending    = "pending" // the owner of such a peer is asked whether it is taken in at all
)

// Event is one transition (MESS-28).
type Event struct {
	Action string    `json:"action"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Ref    string    `json:"ref,omitempty"` // of the message that brought it
	Note   string    `json:"note,omitempty"`
}

// Message is one message of a thread, as it was received or as the exchange wrote it.
type Message struct {
	Serial  int        `json:"serial"`
	Ref     string     `json:"ref,omitempty"`
	From    string     `json:"from"`
	At      time.Time  `json:"at"`
	Channel string     `json:"channel,omitempty"`
	Re      []string   `json:"re,omitempty"`
	Mess    wire.Value `json:"mess"` // the list
}

// The bounds of a thread: who reads it has all of its messages in memory, and every change writes all of its history. What
// ends it may still be said.
const (
	MaxMessages = 2000
	MaxThread   = 16 << 20 // bytes of messages, attachments apart
	MaxEvents   = 4000
	MaxNote     = 500
)

// FullReason says why nothing more may be said in a thread, "" where it may.
func (t *Thread) FullReason() string {
	switch {
	case t.Serial > MaxMessages:
		return "the thread has too many messages"
	case t.Bytes > MaxThread:
		return "the messages of the thread are too large together"
	case len(t.History) > MaxEvents:
		return "the thread has changed too often"
	}
	return ""
}

// Encode writes a value of ours as JSON.
func Encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("mess: encode: %v", err)) // only fields we filled
	}
	return data
}

// CapabilityIDs returns the required ids.
func (t *Thread) CapabilityIDs() []string {
	out := make([]string, len(t.Requires))
	for i, n := range t.Requires {
		out[i] = n.ID
	}
	return out
}

// OpenQuestion returns the open question with this id.
func (t *Thread) OpenQuestion(id string) *Question {
	if t.Status != NeedsInput {
		return nil
	}
	for i := range t.Questions {
		if t.Questions[i].ID == id && !t.Questions[i].Answered {
			return &t.Questions[i]
		}
	}
	return nil
}

// CountQuestions returns how many questions are open.
func (t *Thread) CountQuestions() int {
	n := 0
	for _, q := range t.Questions {
		if t.Status == NeedsInput && !q.Answered {
			n++
		}
	}
	return n
}

// IsClaimable reports whether an executor may claim it now.
func (t *Thread) IsClaimable() bool { return t.Status == Received }

// IsOfferedTo reports whether the thread is offered to the executor, capabilities aside.
func (t *Thread) IsOfferedTo(id string) bool {
	return (t.Only == "" || t.Only == id) && !slices.Contains(t.Declined, id)
}

// ChannelRefused marks a message that was read from a file and that the state machine did not allow: it is kept and
// changed nothing (MESS-51).
const ChannelRefused = "refused"
