package mess

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// The patterns by which an executor claims cost everybody who asks for something. Large ones are refused, all of an
// executor's count together, and a long intent is matched by its beginning.
func TestAutoClaimIsBounded(t *testing.T) {
	s := newSite(t, nil)
	key := s.register("bob")
	prefer := func(patterns ...string) string {
		return `{"preferences":{"auto_claim_patterns":["` + strings.Join(patterns, `","`) + `"]}}`
	}
	wide := strings.Repeat(`(\\pL|x?){900}`, 10)
	s.want(http.StatusBadRequest, key, "PATCH", "executors/bob", prefer(wide))
	s.want(http.StatusBadRequest, key, "PATCH", "executors/bob", prefer("a{400}", "b{400}", "c{400}"))
	s.want(http.StatusBadRequest, key, "PATCH", "executors/bob", prefer("("))
	s.want(http.StatusOK, key, "PATCH", "executors/bob", prefer("a{400}", "(?i)^water (the )?(roses|lawn)", "far away"))
	s.lab.want(s.request("agent", "{intent: Water the lawn}"), thread.Claimed)
	s.lab.want(s.request("agent", "{intent: '"+strings.Repeat("x", 2*maxMatched)+" far away'}"), thread.Received)
	// One that is stored all the same matches nothing, and costs nothing.
	e := *s.crew.get("bob").Executor
	e.Preferences.AutoClaim = []string{strings.ReplaceAll(wide, `\\`, `\`), "."}
	s.crew.put(&e)
	start := time.Now()
	s.lab.want(s.request("agent", "{intent: '"+strings.Repeat("x", 8<<10)+"'}"), thread.Received)
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("a request took %v", took)
	}
}
