package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// newIdleRelay returns a relay that does not run, with n agents.
func newIdleRelay(t *testing.T, cfg Config, n int) *Relay {
	t.Helper()
	if cfg.Records == nil {
		cfg.Records = openStore(t).Records()
	}
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	addAgents(t, r, n, "agent-%d")
	return r
}

// addAgents stores n agents, whose tokens are their ids.
func addAgents(t *testing.T, r *Relay, n int, form string) {
	t.Helper()
	var changes []store.Change
	var members []*member
	for i := range n {
		m := newMember(fmt.Sprintf(form, i))
		change, err := r.agents.Change(m)
		if err != nil {
			t.Fatal(err)
		}
		changes, members = append(changes, change), append(members, m)
	}
	for batch := range slices.Chunk(changes, 1000) {
		if err := r.cfg.Records.Apply(t.Context(), batch, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r.agents.Publish(members...)
}
