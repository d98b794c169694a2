package relay

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

// TestStats checks the statistics and what each mode hides (AR-32, AR-34).
func TestStats(t *testing.T) {
	for _, tt := range []struct {
		mode   StatsMode
		status int
		names  bool
	}{{"", 200, true}, {StatsCounts, 200, false}, {StatsOff, 404, false}} {
		t.Run(string(tt.mode), func(t *testing.T) {
			s := newTestRelay(t, Config{Stats: tt.mode, AnyOrigin: true})
			a := s.join("aaa")
			s.register("bbb")
			a.send(`{"to":["relay"],"type":"subscribe","payload":{"agents":["bbb"]}}`)
			a.next()
			a.send(`{"to":["*"],"payload":1}`)
			a.quiet()
			status, body := s.ask("GET", "/stats", "")
			if status != tt.status {
				t.Fatalf("GET /stats: %d %s, want %d", status, body, tt.status)
			}
			if status != 200 {
				return
			}
			var got statsBody
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatal(err)
			}
			if got.Relay.Connected != 1 || got.Relay.Subscriptions != 1 || got.Registry.Registered != 2 || got.Registered != 2 ||
				got.Active != 1 || got.PerMinute != 1 {
				t.Errorf("stats %s", body)
			}
			if named := slices.Equal(got.Registry.Agents, []string{"aaa", "bbb"}) && slices.Equal(got.Relay.Agents, []string{"aaa"}); named != tt.names {
				t.Errorf("stats %s; names: %v, want %v", body, named, tt.names)
			}
		})
	}
}

// TestStatsBounded: the relay collects the statistics at most once per statsFor, however many clients ask, and names at
// most maxNamed agents.
func TestStatsBounded(t *testing.T) {
	s := newTestRelay(t, Config{})
	addAgents(t, s.Relay, 2*maxNamed, "agent-%04d")
	now := time.Now()
	at := func(now time.Time) (got statsBody) {
		if err := json.Unmarshal(s.stats(now), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := at(now); got.Registered != 2*maxNamed || len(got.Registry.Agents) != maxNamed || got.Registry.Agents[0] != "agent-0000" {
		t.Errorf("%d registered, %d named", got.Registered, len(got.Registry.Agents))
	}
	s.register("one-more")
	if got := at(now.Add(statsFor - 1)); got.Registered != 2*maxNamed {
		t.Errorf("%d registered within the time of one answer, want it kept", got.Registered)
	}
	if got := at(now.Add(statsFor)); got.Registered != 2*maxNamed+1 {
		t.Errorf("%d registered after it, want a new answer", got.Registered)
	}
}
