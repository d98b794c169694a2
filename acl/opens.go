package acl

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Opens says when the ask ends that a change opens. ok is false where it opens none.
func Opens(c store.Change) (end time.Time, ok bool) {
	if c.Delete || c.Record.NS != nsAsks || !slices.Contains(c.Record.Terms, "state:"+string(AskPending)) {
		return end, false
	}
	s, err := decodeAsk(c.Record)
	return s.Expires, err == nil
}
