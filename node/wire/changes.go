package wire

import (
	"time"
)

// The values of [Change.Change]: what happened to a card.
const (
	ChangeRegistered = "registered"
	ChangeRenewed    = "renewed"     // renewed, or its text was changed
	ChangeKey        = "key_changed" // AM-60
	ChangeVerified   = "verified"    // the directory proved something about the card (AM-61)
	ChangeWithdrawn  = "withdrawn"   // withdrawn by its owner
	ChangeRemoved    = "removed"     // removed by the operator of the directory
	ChangeExpired    = "expired"
)

// ChangePage is the answer to GET /changes, in commit order. Each id occurs once, with its newest change.
type ChangePage struct {
	Changes []Change `json:"changes"`
	Next    string   `json:"next"` // the value of since= in the next request; set even if Changes is empty
	More    bool     `json:"more"` // more changes exist already
}

// Change is one line of the feed. A line without a Record is a tombstone: the card is no longer listed.
type Change struct {
	Change  string      `json:"change"`
	AgentID AgentID     `json:"agent_id"`
	At      time.Time   `json:"at"`
	Record  *CardRecord `json:"record,omitempty"`
	Reason  string      `json:"reason,omitempty"` // the operator's reason for a removal
}

// MarshalJSON writes the time in the format of AM-19.
func (c Change) MarshalJSON() ([]byte, error) {
	type plain Change
	return Encode(struct {
		plain
		At stamp `json:"at"`
	}{plain(c), stamp(c.At)})
}
