package acl

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Opens returns when the ask ends that a change opens. ok is false if it opens none.
func Opens(c store.Change) (end time.Time, ok bool) {
	waits := func(term string) bool { return term == "state:"+string(AskPending) || term == termBehind }
	if c.Delete || c.Record.NS != AskNamespace || !slices.ContainsFunc(c.Record.Terms, waits) {
		return end, false
	}
	s, err := decodeAsk(c.Record)
	return s.ends(), err == nil && s.State == AskPending
}
