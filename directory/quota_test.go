package directory

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/node/wire"
)

func TestQuotas(t *testing.T) { // AM-58
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Quotas = Quotas{} })
		register := func(token string, i int, host, remote string) int {
			card := testCard(fmt.Sprint("am_", i), text("endpoint", "https://"+host+"/agentmesh"))
			return w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(token), "Remote", remote)...).Code
		}
		for i := range 10 {
			if got := register(alice, i, fmt.Sprint("h", i, ".example"), "198.51.100.1:9"); got != 201 {
				t.Fatalf("card %d of one token = %d", i, got)
			}
		}
		if got := register(alice, 10, "h.example", "198.51.100.1:9"); got != 429 {
			t.Errorf("card 11 of one token = %d, want 429", got)
		}
		want(t, w.do("PUT", "/v1/agents/am_0", "", withBearer(alice)...), 200, "") // a card that is counted already can be renewed
		want(t, w.do("DELETE", "/v1/agents/am_0", "", withBearer(alice)...), 204, "")
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
			return w.do("POST", "/v1/agents", string(testCard(fmt.Sprint("am_", i)).JSON()), append(withBearer(alice), "Remote", fmt.Sprintf("[2001:db8::%x]:9", i))...).Code
		}
		for i := range 20 {
			if got := register(i); got != 201 {
				t.Fatalf("registration %d = %d", i, got)
			}
		}
		got := w.do("POST", "/v1/agents", string(testCard("am_20").JSON()), append(withBearer(alice), "Remote", "[2001:db8::ffff]:9")...)
		want(t, got, 429, "RATE_LIMITED")
		if wait := got.Header().Get("Retry-After"); wait != "180" {
			t.Errorf("Retry-After = %q, want 180", wait)
		}
		if got := register(3); got != 201 {
			t.Errorf("a renewal = %d, want 201: it does not count as a registration", got)
		}
		time.Sleep(3 * time.Minute)
		if got := register(20); got != 201 {
			t.Errorf("after the wait = %d, want 201", got)
		}
	})
}

// TestRefusedRegistrationIsFree: a refused registration does not count against the hourly limit (AM-43).
func TestRefusedRegistrationIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHost: 1} })
		register := func(owner, id, host string) int {
			card := testCard(id, text("endpoint", "https://"+host+"/agentmesh"))
			return w.do("POST", "/v1/agents", string(card.JSON()), withBearer(owner)...).Code
		}
		if got := register(alice, "am_0", "h0.example"); got != 201 {
			t.Fatalf("the first card = %d", got)
		}
		for range 2 * admission.DefaultPerHour {
			if got := register(bob, "am_0", "h1.example"); got != 409 {
				t.Fatalf("an id that is taken = %d, want 409", got)
			}
			if got := register(bob, "am_1", "h0.example"); got != 429 {
				t.Fatalf("a host without room = %d, want 429", got)
			}
		}
		for i := 1; i <= admission.DefaultPerHour; i++ {
			want := 201
			if i == admission.DefaultPerHour {
				want = 429
			}
			if got := register(bob, fmt.Sprint("am_", i), fmt.Sprintf("h%d.example", i)); got != want {
				t.Errorf("card %d = %d, want %d", i, got, want)
			}
		}
	})
}

// TestNewcomerRegisters: after one network has used up the remembered addresses, an address of another network can
// still register (THREATS 32).
func TestNewcomerRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range maxClients {
			addr := netip.MustParseAddr(fmt.Sprintf("2001:db8:%x:%x::1", 1+i>>16, i&0xffff))
			if _, err := w.reg.gate.NewCharge(addr, [32]byte{}, wire.Now()).Take(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.reg.reporters.Take(addr, wire.Now())
			for range admission.MaxFailures {
				w.reg.gate.CountFailure(t.Context(), addr, wire.Now())
			}
		}
		for i, remote := range []string{"203.0.113.9:9", "[2001:db8:ffff::1]:9", "127.0.0.1:9"} {
			id, owner := fmt.Sprint("am_new", i), append(withBearer(bob), "Remote", remote)
			want(t, w.do("POST", "/v1/agents", string(testCard(id).JSON()), owner...), 201, "")
			want(t, w.do("POST", "/v1/agents/"+id+"/reports", `{"kind":"spam"}`, "Remote", remote), 202, "")
			want(t, w.do("PUT", "/v1/agents/"+id, "", append(withBearer("another-credential-x"), "Remote", remote)...), 403, "UNAUTHORIZED")
			want(t, w.do("PUT", "/v1/agents/"+id, "", owner...), 200, "")
		}
	})
}

// TestReportsOfUnknownClients: clients that cannot be distinguished do not replace each other's reports.
func TestReportsOfUnknownClients(t *testing.T) { // THREATS 33
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	for _, body := range []string{`{"kind":"spam","text":"look"}`, `{"kind":"other","text":"never mind"}`, `{"kind":"spam","text":"look"}`} {
		want(t, w.do("POST", "/v1/agents/am_a/reports", body, "Remote", "127.0.0.1:9"), 202, "")
	}
	list, _, err := w.reg.Reports(t.Context(), "am_a", "", 10)
	if err != nil || len(list) != 2 || list[0].From != "unknown" {
		t.Errorf("reports = %+v, %v, want two of an unknown client", list, err)
	}
}

func TestLocalProfileHasNoQuotas(t *testing.T) { // AM-82
	w := newWorld(t, func(c *Config) {
		c.Local, c.BaseURL, c.Quotas, c.Mode = true, "http://127.0.0.1:3141/v1", Quotas{}, Closed
	})
	for i := range 30 {
		card := testCard(fmt.Sprint("am_", i), text("endpoint", "http://127.0.0.1:3141/agentmesh"))
		if got := w.do("POST", "/v1/agents", string(card.JSON()), withBearer("x")...); got.Code != 201 {
			t.Fatalf("registration %d = %d %s", i, got.Code, got.Body)
		}
	}
	want(t, w.do("POST", "/v1/agents", string(testCard("am_x", text("endpoint", "http://agent.example/")).JSON()), withBearer("x")...), 400, "INVALID_MESSAGE")
	if got := w.do("GET", "/v1/agents", "").Header().Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("any page may read a local directory: %q", got)
	}
	for range reportsPerHour + 1 { // a report replaces the one before
		want(t, w.do("POST", "/v1/agents/am_0/reports", `{"kind":"spam"}`), 202, "")
	}
}
