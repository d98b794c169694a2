package view

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Space is a space as its owner sees it. Names and capabilities are text of other participants.
type Space struct {
	ID           string            `json:"id"`
	Name         string            `json:"name,omitempty"`
	Participants []Participant     `json:"participants"`
	Streams      []json.RawMessage `json:"streams"` // of a hosted space
	Proposals    []Proposal        `json:"proposals"`
	Reasoning    []Reasoning       `json:"reasoning"`
}

// NameOf returns the name of the participant with an id, or the id itself. Both are text of others.
func (s Space) NameOf(id string) string {
	for _, p := range s.Participants {
		if p.ID == id && p.Name != "" {
			return p.Name
		}
	}
	return id
}

// CountPresent counts the participants that are connected.
func (s Space) CountPresent() int {
	n := 0
	for _, p := range s.Participants {
		if p.Connected {
			n++
		}
	}
	return n
}

// Participant is one participant of a space.
type Participant struct {
	Name         string            `json:"name"`
	ID           string            `json:"id"` // the id under which it joined; Name if it is away
	Connected    bool              `json:"connected"`
	Connection   string            `json:"connection_id,omitempty"`
	Since        time.Time         `json:"since,omitzero"` // since when it is connected
	Capabilities []json.RawMessage `json:"capabilities"`
	Grants       []Grant           `json:"grants,omitempty"`
	Invited      bool              `json:"invited,omitempty"`
	Paused       bool              `json:"paused,omitempty"`
	PausedUntil  time.Time         `json:"paused_until,omitzero"`
	Down         bool              `json:"shut_down,omitempty"` // until it joins again
	Barred       bool              `json:"barred,omitempty"`    // it was kicked and not invited again
	Own          bool              `json:"own,omitempty"`       // it is the node of this process
}

// State returns the state of the participant in one or two words.
func (p Participant) State() string {
	switch {
	case p.Barred:
		return "barred"
	case p.Down:
		return "shut down"
	case p.Paused:
		return "paused"
	case p.Connected:
		return "here"
	}
	return "away"
}

// Grant is a grant that a participant holds.
type Grant struct {
	ID string    `json:"id"`
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Said is the answer of a space to an envelope that it took. The members from Participant on are those of an invite.
type Said struct {
	ID          string `json:"id"`
	Status      string `json:"status"`
	Timestamp   string `json:"timestamp,omitempty"`
	Participant string `json:"participant_id,omitempty"`
	Token       string `json:"token,omitempty"`
	URL         string `json:"connection_url,omitempty"`
	Message     string `json:"message,omitempty"`
}

// AlreadyExists is the status of an invite whose name another participant has.
const AlreadyExists = "already_exists"

// ReadSaid returns the answer to the envelope with this id. An answer that is not an object means that the space took
// the envelope.
func ReadSaid(id string, answer wire.Value) Said {
	return Said{
		ID: id, Status: cmp.Or(answer.GetStr("status"), "accepted"), Timestamp: answer.GetStr("timestamp"), Participant: answer.GetStr("participant_id"),
		Token: answer.GetStr("token"), URL: answer.GetStr("connection_url"), Message: answer.GetStr("message"),
	}
}

// NewFault returns an error for the owner.
func NewFault(status int, text string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: status, Message: text}
}

// NewRefusal returns an error that tells the owner why a space refused an envelope, with the payload of a system/error.
func NewRefusal(status int, payload wire.Value) error {
	return NewFault(status, "the space refused the envelope: "+envelope.ToPrintable(string(payload.JSON()), 300))
}
