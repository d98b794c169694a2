package directory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestQuotas(t *testing.T) { // AM-58
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Quotas = Quotas{} })
		register := func(token string, i int, host, remote string) int {
			card := testCard(fmt.Sprint("am_", i), text("endpoint", "https://"+host+"/agentmesh"))
			return w.ask("POST", "/v1/agents", string(card.JSON()), append(as(token), "Remote", remote)...).Code
		}
		for i := range 10 {
			if got := register(alice, i, fmt.Sprint("h", i, ".example"), "198.51.100.1:9"); got != 201 {
				t.Fatalf("card %d of one token = %d", i, got)
			}
		}
		if got := register(alice, 10, "h.example", "198.51.100.1:9"); got != 429 {
			t.Errorf("card 11 of one token = %d, want 429", got)
		}
		want(t, w.ask("PUT", "/v1/agents/am_0", "", as(alice)...), 200, "") // what counts already is renewed
		want(t, w.ask("DELETE", "/v1/agents/am_0", "", as(alice)...), 204, "")
		if got := register(alice, 10, "h.example", "198.51.100.1:9"); got != 201 {
			t.Errorf("after a withdrawal = %d, want 201", got)
		}
		for i := range 10 {
			if got := register(fmt.Sprint("another-credential-", i), 100+i, "SHARED.example:8443", fmt.Sprintf("198.51.100.%d:9", 2+i)); got != 201 {
				t.Fatalf("card %d of one host = %d", i, got)
			}
		}
		if got := register("another-credential-x", 110, "shared.example", "198.51.100.99:9"); got != 429 {
			t.Errorf("card 11 of one host = %d, want 429", got)
		}
	})
}

func TestHourlyQuota(t *testing.T) { // AM-58
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHost: -1} })
		register := func(i int) int {
			return w.ask("POST", "/v1/agents", string(testCard(fmt.Sprint("am_", i)).JSON()), append(as(alice), "Remote", fmt.Sprintf("[2001:db8::%x]:9", i))...).Code
		}
		for i := range 20 {
			if got := register(i); got != 201 {
				t.Fatalf("registration %d = %d", i, got)
			}
		}
		got := w.ask("POST", "/v1/agents", string(testCard("am_20").JSON()), append(as(alice), "Remote", "[2001:db8::ffff]:9")...)
		want(t, got, 429, "RATE_LIMITED")
		if wait := got.Header().Get("Retry-After"); wait != "180" {
			t.Errorf("Retry-After = %q, want 180", wait)
		}
		if got := register(3); got != 201 {
			t.Errorf("a renewal = %d: it is no registration", got)
		}
		time.Sleep(3 * time.Minute)
		if got := register(20); got != 201 {
			t.Errorf("after the wait = %d, want 201", got)
		}
	})
}

func TestLocalProfileHasNoQuotas(t *testing.T) { // AM-82
	w := newWorld(t, func(c *Config) {
		c.Local, c.BaseURL, c.Quotas, c.Mode = true, "http://127.0.0.1:3141/v1", Quotas{}, Closed
	})
	for i := range 30 {
		card := testCard(fmt.Sprint("am_", i), text("endpoint", "http://127.0.0.1:3141/agentmesh"))
		if got := w.ask("POST", "/v1/agents", string(card.JSON()), as("x")...); got.Code != 201 {
			t.Fatalf("registration %d = %d %s", i, got.Code, got.Body)
		}
	}
	want(t, w.ask("POST", "/v1/agents", string(testCard("am_x", text("endpoint", "http://agent.example/")).JSON()), as("x")...), 400, "INVALID_MESSAGE")
	if got := w.ask("GET", "/v1/agents", "").Header().Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("any page may read a local directory: %q", got)
	}
}
