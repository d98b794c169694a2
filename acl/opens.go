package acl

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Opens returns the time at which the ask that the change stores expires. ok is false if the change stores no pending
// ask.
func Opens(c store.Change) (end time.Time, ok bool) {
	isPending := func(term string) bool { return term == "state:"+string(AskPending) || term == termBehind }
	if c.Delete || c.Record.NS != AskNamespace || !slices.ContainsFunc(c.Record.Terms, isPending) {
		return end, false
	}
	s, err := decodeAsk(c.Record)
	return s.expiry(), err == nil && s.State == AskPending
}
