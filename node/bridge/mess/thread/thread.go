package thread

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Thread is the state of one request (MESS-16). An exchange, the server between requesters and executors, keeps it. Its
// messages are stored separately as [Message] records.
type Thread struct {
	Ref       string `json:"ref"`
	ClientID  string `json:"client_id,omitempty"`
	Requester string `json:"requester"`
	Holder    string `json:"holder,omitempty"`
	Status    Code   `json:"status"`

	Intent   string `json:"intent"`
	Priority string `json:"priority"`
	Requires []Need `json:"requires,omitempty"`

	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	Ended   time.Time `json:"ended,omitzero"` // when it became completed or partial (MESS-39)

	NotBefore time.Time `json:"not_before,omitzero"`
	Deadline  time.Time `json:"deadline,omitzero"` // MESS-15, MESS-32
	DependsOn []string  `json:"depends_on,omitempty"`

	ConfirmBefore bool `json:"confirm_before,omitempty"` // the requester must confirm before it completes (MESS-25)
	Confirmed     bool `json:"confirmed,omitempty"`
	Refused       bool `json:"refused,omitempty"` // the requester refused the action that needed confirmation

	// Parked is the reason for which the exchange or its owner made the thread wait; "" if neither did. Either of them
	// may give a parked thread the status "received" again.
	Parked   string   `json:"parked,omitempty"`
	Declined []string `json:"declined,omitempty"` // executors that declined before a claim (MESS-24)
	Only     string   `json:"only,omitempty"`     // the only executor to which it is offered (MESS-27)

	Questions   []Question   `json:"questions,omitempty"`   // of the current needs_input status
	Suggestions []Suggestion `json:"suggestions,omitempty"` // newest last
	Successors  []string     `json:"successors,omitempty"`  // threads that replaced it

	History  []Event `json:"history"`
	Serial   int     `json:"serial"`             // serial number of the newest message
	Bytes    int     `json:"bytes,omitempty"`    // of its messages, without attachments
	Version  uint64  `json:"version"`            // grows with each change
	Stage    string  `json:"stage,omitempty"`    // the state in which it expired
	Offered  bool    `json:"offered,omitempty"`  // offers of it were sent
	External string  `json:"external,omitempty"` // the conversation in which a peer requested it, if any

	// ForeignBytes is the size of the attachments that were copied from a foreign thread.
	ForeignBytes int `json:"taken,omitempty"`

	// Peers are the mesh agents and the peers of links (connections to other exchanges) that take part, each in its own
	// conversation.
	Peers map[string]Peer `json:"peers,omitempty"`

	Rev store.Rev `json:"-"` // of the stored record
}

// Peer is a participant of a thread: a mesh agent or a peer of a link. The fields say in which conversation it gets
// updates, and what it may do.
type Peer struct {
	Conv    string `json:"conv"`              // the conversation
	Address string `json:"address,omitempty"` // of a peer of a link; "" for a mesh agent
	Offered bool   `json:"offered,omitempty"` // the peer may claim the thread
	Name    string `json:"name,omitempty"`    // the peer's name for the thread
}

// Reasons for which a thread is parked.
const (
	ParkedDependency = "dependency"
	ParkedSchedule   = "schedule"
	ParkedApproval   = "approval"
	ParkedPeer       = "peer"    // the peer that got the thread reported that its exchange is holding it back
	ParkedPending    = "pending" // the owner of that peer has not yet decided whether to accept the thread
)

// Event is one transition (MESS-28).
type Event struct {
	Action string    `json:"action"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Ref    string    `json:"ref,omitempty"` // of the message that caused it
	Note   string    `json:"note,omitempty"`
}

// Message is one message of a thread, as the exchange received or wrote it.
type Message struct {
	Serial  int        `json:"serial"`
	Ref     string     `json:"ref,omitempty"`
	From    string     `json:"from"`
	At      time.Time  `json:"at"`
	Channel string     `json:"channel,omitempty"` // how it reached the exchange, such as rest or file; or [ChannelRefused]
	Re      []string   `json:"re,omitempty"`
	Mess    wire.Value `json:"mess"` // the list of entries
}

// Bounds of a thread. They exist because a reader has all messages of the thread in memory, and every change writes the
// whole history. A message that ends the thread is accepted beyond these bounds.
const (
	MaxMessages = 2000
	MaxThread   = 16 << 20 // bytes of messages, without attachments
	MaxEvents   = 4000     // of the history
	MaxNote     = 500      // characters of a note in the history
)

// FullReason returns the reason for which a thread accepts no more messages, or "" if it accepts them.
func (t *Thread) FullReason() string {
	switch {
	case t.Serial > MaxMessages:
		return "the thread has too many messages"
	case t.Bytes > MaxThread:
		return "the messages of the thread are too large in total"
	case len(t.History) > MaxEvents:
		return "the thread has changed too often"
	}
	return ""
}

// CapabilityIDs returns the ids of the required capabilities.
func (t *Thread) CapabilityIDs() []string {
	out := make([]string, len(t.Requires))
	for i, n := range t.Requires {
		out[i] = n.ID
	}
	return out
}

// OpenQuestion returns the open question with this id, or nil.
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

// CountQuestions returns the number of open questions.
func (t *Thread) CountQuestions() int {
	n := 0
	for _, q := range t.Questions {
		if t.Status == NeedsInput && !q.Answered {
			n++
		}
	}
	return n
}

// IsClaimable reports whether an executor may claim the thread now.
func (t *Thread) IsClaimable() bool { return t.Status == Received }

// IsOfferedTo reports whether the thread is offered to the executor. It ignores capabilities.
func (t *Thread) IsOfferedTo(id string) bool {
	return (t.Only == "" || t.Only == id) && !slices.Contains(t.Declined, id)
}

// HasOffer reports whether a peer has an open offer of the thread.
func (t *Thread) HasOffer(peer string) bool { return t.Peers[peer].Offered && t.IsOfferedTo(peer) }

// ChannelRefused is the channel of a refused message: it came in a thread file or through a link, and the state machine
// refused it. The message is stored but has no effect (MESS-51).
const ChannelRefused = "refused"
