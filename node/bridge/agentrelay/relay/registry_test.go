package relay

import (
	"fmt"
	"testing"
	"time"
)

// newIdleRelay returns a relay that does not run, with n agents that are not stored.
func newIdleRelay(t *testing.T, cfg Config, n int) *Relay {
	t.Helper()
	if cfg.Records == nil {
		cfg.Records = openStore(t).Records()
	}
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r.agents.Publish(newMember(fmt.Sprintf("agent-%d", i)))
	}
	return r
}

// TestActivityIsStoredAtTheEnd: a relay that ends stores the activity of all agents, and counts it for the quorum of
// a vote after a restart, except that of removed agents (AR-42).
func TestActivityIsStoredAtTheEnd(t *testing.T) {
	const agents = 20
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{})
	now := time.Now()
	for i := range agents {
		id := fmt.Sprintf("agent-%d", i)
		s.register(id)
		s.agents.MarkSeen(id, now)
	}
	if err := s.agents.Remove(t.Context(), "agent-7"); err != nil {
		t.Fatal(err)
	}
	s.stop()
	again := newIdleRelay(t, Config{Records: st.Records()}, 0)
	if n := again.agents.ActiveSince(now.Add(-time.Minute)); n != agents-1 {
		t.Errorf("after a restart, %d agents were active, want %d", n, agents-1)
	}
}
