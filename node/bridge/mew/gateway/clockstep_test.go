//go:build clockstep

package gateway

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStep: while the clock is wrong, the gateway ends no pause, forgets no proposal and no envelope, and makes
// nobody wait longer.
func TestClockStep(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		sc := newLabConfig(t)
		sc.RatePerMinute = 20
		s := newQuietSpace(t, sc)
		say(s, "alice", `{"id":"p1","kind":"mcp/proposal","payload":{}}`)
		time.Sleep(view.KeepProposals - 30*time.Minute)
		if got := say(s, "admin", `{"kind":"participant/pause","to":["alice"],"payload":{"timeout_seconds":1200}}`); got != "" {
			t.Fatal(got)
		}
		began := time.Now()
		say(s, "admin", `{"kind":"chat","payload":{"text":"before"}}`)

		storetest.StepClock(t, by)
		for range 3 {
			time.Sleep(5 * time.Minute)
			s.tick(time.Now())
		}
		if got := say(s, "alice", `{"kind":"chat"}`); got != "participant_paused" {
			t.Errorf("after 15 of 20 minutes: %q", got)
		}
		for range 40 {
			say(s, "bob", `{"kind":"chat","payload":{"text":"during"}}`)
		}
		storetest.StepClock(t, 0)
		time.Sleep(6 * time.Minute)
		s.tick(time.Now())
		if got := say(s, "alice", `{"kind":"chat","payload":{"text":"after"}}`); got != "" {
			t.Errorf("after 21 minutes: %q", got)
		}
		if got := say(s, "bob", `{"kind":"chat","payload":{"text":"after"}}`); got != "" {
			t.Errorf("a minute after bob's allowance was used up: %q", got)
		}
		if got := say(s, "bob", `{"kind":"mcp/withdraw","correlation_id":["p1"],"payload":{}}`); got != "not_proposer" {
			t.Errorf("a proposal of today is forgotten: %q", got)
		}
		if seen, _ := s.out.history.since(began.Add(-time.Second), s.members.byName["admin"], maxPoll); len(seen) < 20 {
			t.Errorf("a poll finds %d envelopes since the pause", len(seen))
		}
		g := &Gateway{accounts: newAccounts(nil), log: quietLog()}
		addr := netip.MustParseAddr("192.0.2.1")
		storetest.StepClock(t, by)
		for range 2 * credential.MaxFailures {
			g.chargeFailedJoin(addr, "", envelope.RefuseToken("no"))
		}
		storetest.StepClock(t, 0)
		time.Sleep(time.Minute)
		if r := g.chargeFailedJoin(addr, "", envelope.RefuseToken("no")); r.Status != http.StatusUnauthorized {
			t.Errorf("a minute after many failed joins: %d", r.Status)
		}
	})
}
