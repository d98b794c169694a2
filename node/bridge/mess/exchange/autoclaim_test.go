package exchange

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAutoClaimIsBounded: the auto-claim patterns of an executor run for every request. Patterns that are too large
// together are refused, and only the beginning of a long intent is matched.
func TestAutoClaimIsBounded(t *testing.T) {
	s := newLab(t)
	s.executor("bob", "knife")
	prefer := func(want int, patterns ...string) {
		t.Helper()
		v, err := wire.Parse([]byte(`{"preferences":{"auto_claim_patterns":["` + strings.Join(patterns, `","`) + `"]}}`))
		if err != nil {
			t.Fatal(err)
		}
		reg, err := ReadRegistration(v, true)
		if err == nil {
			err = s.Executors.Change(t.Context(), actor("bob"), "bob", reg)
		}
		if got := statusOf(err); got != want {
			t.Errorf("%.50q: %d (%v), want %d", patterns, got, err, want)
		}
	}
	wide := strings.Repeat(`(\\pL|x?){900}`, 10)
	prefer(http.StatusBadRequest, wide)
	prefer(http.StatusBadRequest, "a{400}", "b{400}", "c{400}")
	prefer(http.StatusBadRequest, "(")
	prefer(http.StatusOK, "a{400}", "(?i)^water (the )?(roses|lawn)", "far away")
	th := s.want(s.request("agent", "{intent: Water the lawn}"), thread.Claimed)
	if m, err := s.Message(t.Context(), th.Ref, 2); err != nil || !strings.Contains(string(m.Mess.JSON()), `"executor":"bob"`) {
		t.Errorf("the claim is %s, %v", m.Mess.JSON(), err)
	}
	s.want(s.request("agent", "{intent: '"+strings.Repeat("x", 2*maxMatched)+" far away'}"), thread.Received)
	// A pattern that is in the store all the same matches nothing and costs nothing.
	e := *s.Executors.get("bob").Executor
	e.Preferences.AutoClaim = []string{strings.ReplaceAll(wide, `\\`, `\`), "."}
	s.Executors.put(&e)
	start := time.Now()
	s.want(s.request("agent", "{intent: '"+strings.Repeat("x", 8<<10)+"'}"), thread.Received)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("a request took %v", took)
	}
}

// TestAutoClaimOfMany: one request is matched with a bounded number of patterns, however many executors there are. An
// executor after the bound gets an offer like any other, and a routing rule puts it first.
func TestAutoClaimOfMany(t *testing.T) {
	s := newLab(t)
	add := func(id, pattern string) {
		s.executor(id)
		e := *s.Executors.get(id).Executor
		e.Preferences.AutoClaim = []string{pattern}
		s.Executors.put(&e)
	}
	add("first", "^dig")
	for i := range maxMatchedCode / 800 {
		add(fmt.Sprintf("e%d", i), "x{900}")
	}
	add("last", "^plant")
	if th := s.want(s.request("agent", "{intent: dig}"), thread.Claimed); th.Holder != "first" {
		t.Errorf("%s has claimed it", th.Holder)
	}
	s.want(s.request("agent", "{intent: plant}"), thread.Received)
	s.do(thread.OwnerID, "- config: {routing: {rules: [{match: {urgency: soon}, prefer: [last]}]}}")
	s.want(s.request("agent", "{intent: plant, constraints: {timing: {urgency: soon}}}"), thread.Claimed)
}
