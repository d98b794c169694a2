package wire

import (
	"encoding/json"
	"time"
)

// What happened to a card, in [Change].
const (
	ChangeRegistered = "registered"
	ChangeRenewed    = "renewed"     // or its text was changed
	ChangeKey        = "key_changed" // AM-60
	ChangeVerified   = "verified"    // the directory found something out about it (AM-61)
	ChangeWithdrawn  = "withdrawn"   // by its owner
	ChangeRemoved    = "removed"     // by the operator of the directory
	ChangeExpired    = "expired"
)

// ChangePage is the answer to GET /changes: what happened to cards, in commit order. Each id stands once, with its
// newest change.
type ChangePage struct {
	Changes []Change `json:"changes"`
	Next    string   `json:"next"` // the parameter since of the next request, also where nothing happened
	More    bool     `json:"more"` // there is more already
}

// Change is one line of the feed. Record is there where the card is listed; without one the line is a tombstone.
type Change struct {
	Change  string      `json:"change"`
	AgentID AgentID     `json:"agent_id"`
	At      time.Time   `json:"at"`
	Record  *CardRecord `json:"record,omitempty"`
	Reason  string      `json:"reason,omitempty"` // the operator's, of a removal
}

// MarshalJSON writes the time as AM-19 has it.
func (c Change) MarshalJSON() ([]byte, error) {
	type plain Change
	return json.Marshal(struct {
		plain
		At stamp `json:"at"`
	}{plain(c), stamp(c.At)})
}
