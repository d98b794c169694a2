package registry

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// TestRegistryProofs: the trust score grows with each proof: of the key by a signed message, of the endpoint by an
// answer. A new endpoint starts without a proof (MS-55).
func TestRegistryProofs(t *testing.T) {
	fails, asked := make(map[string]bool), 0
	s, c := newTestServer(t, func(c *Config) {
		c.Challenge = func(_ context.Context, e Entry, _ time.Time) error {
			asked++
			if fails[e.ID] {
				return errors.New("another signed for it")
			}
			return nil
		}
	})
	score := func(name string) float64 {
		t.Helper()
		var got struct{ Agent Entry }
		_, body := c.do("GET", "/api/v1/agents/"+name, "", "")
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		return got.Agent.TrustScore
	}
	prove := func(name string, now time.Time) error { return s.proveEndpoint(t.Context(), name, now) }
	for _, name := range []string{cat, dog} {
		c.do("POST", "/api/v1/agents", mine, register(name, "https://x.example/"+name))
	}
	if got := score(cat); got != 0.5 {
		t.Errorf("registered: %v", got)
	}
	now := time.Now()
	if err := prove(cat, now); err != nil || score(cat) != 0.9 {
		t.Errorf("its endpoint answered: %v, %v", score(cat), err)
	}
	fails[dog] = true
	if err := prove(dog, now); err == nil || score(dog) != 0.5 {
		t.Errorf("another signed for it: %v, %v", score(dog), err)
	}
	if before := asked; prove(dog, now.Add(time.Minute)) != nil || asked != before {
		t.Error("an endpoint is asked again within the hour")
	}
	s.ProveKey(t.Context(), dog, keyOf(cat), now)
	if got := score(dog); got != 0.5 {
		t.Errorf("another key proved it: %v", got)
	}
	s.ProveKey(t.Context(), dog, keyOf(dog), now)
	if got := score(dog); got != 0.7 {
		t.Errorf("it signed a message: %v", got)
	}
	c.do("PUT", "/api/v1/agents/"+cat, mine, `{"endpoint":"https://x.example/elsewhere"}`)
	if got := score(cat); got != 0.7 {
		t.Errorf("another endpoint: %v", got)
	}
	if err := prove(cat, now); err != nil || score(cat) != 0.9 {
		t.Errorf("proven again: %v, %v", score(cat), err)
	}
	fails[cat] = true
	if err := prove(cat, now.Add(proveAgain)); err == nil || score(cat) != 0.7 {
		t.Errorf("an endpoint that is gone: %v, %v", score(cat), err)
	}
}

// TestProofsAreShared: an agent that changes its entry all the time takes one place of the queue, and gets another one
// when the first is free.
func TestProofsAreShared(t *testing.T) {
	p := &proofs{queue: make(chan string, 5)}
	for range 2 {
		for range cap(p.queue) {
			p.add(cat)
		}
		p.add(dog)
		for _, want := range []string{cat, dog} {
			select {
			case got := <-p.queue:
				p.waiting.Delete(got)
				if got != want {
					t.Errorf("next is %s, want %s", got, want)
				}
			default:
				t.Fatalf("%s is not in the queue", want)
			}
		}
		if n := len(p.queue); n != 0 {
			t.Errorf("%d more places are taken", n)
		}
	}
}
