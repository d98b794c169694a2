package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
)

// putAgents puts n registered agents into the registry of a relay, without its store.
func putAgents(r *Relay, n int) {
	for i := range n {
		id := fmt.Sprintf("agent-%d", i)
		r.agents.put(&registration{ID: id, Token: credential.HashOf(id).String(), Since: time.Now()})
	}
}

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
	putAgents(r, n)
	return r
}

// TestBusyAgentIsStored: the activity of an agent that is never silent for an hour is stored every hour (AR-42).
func TestBusyAgentIsStored(t *testing.T) {
	r := newIdleRelay(t, Config{}, 1)
	began := time.Now()
	for minutes := range 121 {
		r.agents.markActive("agent-0", began.Add(time.Duration(minutes)*time.Minute))
		if err := r.agents.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again := newIdleRelay(t, Config{Records: r.cfg.Records}, 0)
	if n := again.agents.activeSince(began.Add(119 * time.Minute)); n != 1 {
		t.Errorf("after a restart, %d agents were active in the last minutes, want 1", n)
	}
}

// TestActivityIsStoredAtTheEnd: a relay that ends stores the activity of all agents (AR-42).
func TestActivityIsStoredAtTheEnd(t *testing.T) {
	const agents = 1100
	st := openStore(t)
	s := newTestRelayOn(t, st, Config{})
	s.agents.mu.Lock()
	putAgents(s.Relay, agents)
	s.agents.mu.Unlock()
	now := time.Now()
	for i := range agents {
		s.agents.markActive(fmt.Sprintf("agent-%d", i), now)
	}
	s.stop()
	again := newIdleRelay(t, Config{Records: st.Records()}, 0)
	if n := again.agents.activeSince(now.Add(-time.Minute)); n != agents {
		t.Errorf("after a restart, %d agents were active, want %d", n, agents)
	}
}

// TestQuorumIgnoresRemoved: an agent that was removed does not count for the quorum of a vote (AR-42).
func TestQuorumIgnoresRemoved(t *testing.T) {
	r := newIdleRelay(t, Config{}, 2)
	now := time.Now()
	r.agents.markActive("agent-0", now)
	r.agents.markActive("agent-1", now)
	if err := r.agents.remove(t.Context(), "agent-1"); err != nil {
		t.Fatal(err)
	}
	if n := r.agents.activeSince(now.Add(-time.Minute)); n != 1 {
		t.Errorf("%d agents were active, want 1", n)
	}
}

// TestOldestTombstoneGoes: when there are too many tombstones, the one of the agent that was removed first goes, not
// the one of the agent that registered first (AR-2).
func TestOldestTombstoneGoes(t *testing.T) {
	r := newIdleRelay(t, Config{MaxAgents: 2}, 0)
	now := time.Now()
	r.agents.put(&registration{ID: "early", Since: now.Add(-3 * time.Hour), Removed: now.Add(-time.Minute)})
	r.agents.put(&registration{ID: "late", Since: now.Add(-2 * time.Hour), Removed: now.Add(-time.Hour)})
	if old := r.agents.oldestTombstone(); old == nil || old.ID != "late" {
		t.Errorf("the tombstone of %+v goes, want that of late", old)
	}
}
