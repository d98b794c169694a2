package registry

import (
	"encoding/json"
	"testing"
	"time"
)

// TestRegistryProofs: a message that is signed with the registered key raises the trust score (MS-55).
func TestRegistryProofs(t *testing.T) {
	s, c := newTestServer(t, nil)
	score := func(name string) float64 {
		t.Helper()
		var got struct{ Agent Entry }
		_, body := c.do("GET", "/api/v1/agents/"+name, "", "")
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		return got.Agent.TrustScore
	}
	c.do("POST", "/api/v1/agents", mine, register(dog, "https://x.example/"+dog))
	if got := score(dog); got != 0.5 {
		t.Errorf("registered: %v", got)
	}
	s.ProveKey(t.Context(), dog, keyOf(cat), time.Now())
	if got := score(dog); got != 0.5 {
		t.Errorf("another key proved it: %v", got)
	}
	s.ProveKey(t.Context(), dog, keyOf(dog), time.Now())
	if got := score(dog); got != 0.7 {
		t.Errorf("it signed a message: %v", got)
	}
}
