package registry

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// newRegistry returns a registry on a real database.
func newRegistry(t testing.TB) *Executors {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mess.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return New(Config{
		ID: "home", CallsPerMinute: -1, RegistrationsPerHour: -1, Records: s.Records(),
		Load: func() error { return nil }, HasThreads: func(string) bool { return false },
	})
}

func statusOf(err error) int {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Status
	}
	return http.StatusOK
}

// TestExecutorsKeepTheNewest: an older version of an executor never replaces a newer one, and a claim changes only the
// claim times.
func TestExecutorsKeepTheNewest(t *testing.T) {
	r := New(Config{})
	r.put(&Executor{ID: "eve", KeyHash: "abc", Version: 1})
	r.put(&Executor{ID: "eve", Pending: true, Version: 3})
	r.put(&Executor{ID: "eve", KeyHash: "abc", Version: 2})
	if c := r.get("eve"); !c.Pending || c.KeyHash != "" || r.byKey("abc") != nil {
		t.Errorf("eve = %+v", c.Executor)
	}
	r.addClaim(Claim{"eve", time.Second, time.Now()})
	if c := r.get("eve"); !c.Pending || !slices.Equal(c.Claims, []time.Duration{time.Second}) {
		t.Errorf("after a claim: %+v", c.Executor)
	}
}

// TestFullCatalogTakesUpdates: a full catalog refuses new entries, and not new descriptions of its entries.
func TestFullCatalogTakesUpdates(t *testing.T) {
	r := newRegistry(t)
	var list []Capability
	for i := range maxCapabilities {
		list = append(list, Capability{ID: fmt.Sprintf("c%06d", i)})
	}
	r.add(list)
	if err := r.AddCapabilities(t.Context(), []Capability{{ID: "c000007", Description: "new"}}); err != nil {
		t.Errorf("the update is refused: %v", err)
	}
	if err := r.AddCapabilities(t.Context(), []Capability{{ID: "c000007"}, {ID: "d"}}); statusOf(err) != http.StatusConflict {
		t.Errorf("one entry too many: %v", err)
	}
}

// TestUnusedCapabilities: a capability that no executor has any longer takes no memory: executors choose the ids.
func TestUnusedCapabilities(t *testing.T) {
	r := newRegistry(t)
	for i := range 20 {
		r.put(&Executor{ID: "bob", Capabilities: []thread.Need{{ID: fmt.Sprintf("a%d", i)}, {ID: fmt.Sprintf("b%d", i)}}})
	}
	if n := len(r.byCap); n != 2 {
		t.Errorf("there are %d capabilities after 20 changes, want the 2 of the executor", n)
	}
	if err := r.Admit(t.Context(), "bob", false, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(r.byCap); n != 0 {
		t.Errorf("there are %d capabilities without an executor", n)
	}
}

// TestPendingIsNoWrongKey: an executor that waits for the owner may ask as often as it likes. Its key is not wrong.
func TestPendingIsNoWrongKey(t *testing.T) {
	r := newRegistry(t)
	key, err := r.Register(t.Context(), Registration{ID: "bob"}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range MaxFailures + 1 {
		_, err = r.Authenticate("Bearer "+key, "home")
		err = r.CountFailure(netip.MustParseAddr("192.0.2.1"), err)
	}
	if err != errPending {
		t.Errorf("a pending key: %v", err)
	}
	for range MaxFailures + 1 {
		_, err = r.Authenticate("Bearer "+key, "other")
		err = r.CountFailure(netip.MustParseAddr("192.0.2.1"), err)
	}
	if statusOf(err) != http.StatusTooManyRequests {
		t.Errorf("a key of another exchange: %v", err)
	}
}

// TestPreferences: preferences decide which executors get a notice, never which may claim (MESS-45).
func TestPreferences(t *testing.T) {
	quiet := QuietHours{Enabled: true, Start: "22:00", End: "07:00"}
	at := func(clock string) time.Time {
		t, _ := time.Parse("2006-01-02 15:04", "2026-01-31 "+clock)
		return t
	}
	for _, tt := range []struct {
		p    Preferences
		th   thread.Thread
		at   string
		want bool
	}{
		{Preferences{}, thread.Thread{Priority: "normal"}, "12:00", true},
		{Preferences{}, thread.Thread{Priority: "background"}, "12:00", false},
		{Preferences{MinPriority: "urgent"}, thread.Thread{Priority: "elevated"}, "12:00", false},
		{Preferences{Quiet: quiet}, thread.Thread{Priority: "normal"}, "23:00", false},
		{Preferences{Quiet: quiet}, thread.Thread{Priority: "normal"}, "03:00", false},
		{Preferences{Quiet: quiet}, thread.Thread{Priority: "normal"}, "07:00", true},
		{Preferences{Quiet: quiet}, thread.Thread{Priority: "urgent"}, "23:00", true},
		{Preferences{Filter: []string{"x"}}, thread.Thread{Priority: "normal", Requires: []thread.Need{{ID: "y"}}}, "12:00", false},
	} {
		c := newCandidate(&Executor{ID: "me", Preferences: tt.p})
		if got := c.wantsNotice(&tt.th, at(tt.at)); got != tt.want {
			t.Errorf("%+v of %+v at %s: %t, want %t", tt.p, tt.th, tt.at, got, tt.want)
		}
	}
}

// autoClaim returns the executor that claims a request with this intent and urgency automatically.
func autoClaim(r *Executors, intent, urgency string) string {
	th := &thread.Thread{Requester: "agent", Priority: "normal", Intent: intent, Urgency: urgency}
	return r.FindAutoClaim(r.Route(th, time.Now()), th)
}

// TestAutoClaimIsBounded: the auto-claim patterns of an executor run for every request. Patterns that are too large
// together are refused, and only the beginning of a long intent is matched.
func TestAutoClaimIsBounded(t *testing.T) {
	r := newRegistry(t)
	if _, err := r.Register(t.Context(), Registration{ID: "bob"}, false, nil); err != nil {
		t.Fatal(err)
	}
	prefer := func(want int, patterns ...string) {
		t.Helper()
		v, err := wire.Parse([]byte(`{"preferences":{"auto_claim_patterns":["` + strings.Join(patterns, `","`) + `"]}}`))
		if err != nil {
			t.Fatal(err)
		}
		reg, err := ReadRegistration(v, true)
		if err == nil {
			err = r.Change(t.Context(), "bob", false, "bob", reg)
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
	if got := autoClaim(r, "Water the lawn", ""); got != "bob" {
		t.Errorf("%q claims it", got)
	}
	if got := autoClaim(r, strings.Repeat("x", 2*maxMatched)+" far away", ""); got != "" {
		t.Errorf("%q claims a long one", got)
	}
	// A stored pattern that is too large matches nothing and costs nothing.
	e := *r.Get("bob")
	e.Preferences.AutoClaim = []string{strings.ReplaceAll(wide, `\\`, `\`), "."}
	r.put(&e)
	start := time.Now()
	if got := autoClaim(r, strings.Repeat("x", 8<<10), ""); got != "" {
		t.Errorf("%q claims it by a pattern that is too large", got)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("a request took %v", took)
	}
}

// TestAutoClaimOfMany: one request is matched with a bounded number of patterns, however many executors there are. An
// executor after the bound gets an offer like any other, and a routing rule puts it first.
func TestAutoClaimOfMany(t *testing.T) {
	r := New(Config{})
	created := time.Now()
	add := func(id, pattern string) {
		created = created.Add(time.Second)
		r.put(&Executor{ID: id, Created: created, Preferences: Preferences{AutoClaim: []string{pattern}}})
	}
	add("first", "^dig")
	for i := range maxMatchedCode / 800 {
		add(fmt.Sprintf("e%d", i), "x{900}")
	}
	add("last", "^plant")
	r.setRules([]thread.Rule{{Urgency: "soon", Prefer: []string{"last"}}})
	for _, tt := range []struct{ intent, urgency, want string }{{"dig", "", "first"}, {"plant", "", ""}, {"plant", "soon", "last"}} {
		if got := autoClaim(r, tt.intent, tt.urgency); got != tt.want {
			t.Errorf("%q claims %+v", got, tt)
		}
	}
}

func BenchmarkRoute10000(b *testing.B) {
	executors := New(Config{})
	for i := range 10_000 {
		e := &Executor{ID: fmt.Sprintf("e%05d", i), Capabilities: []thread.Need{{ID: "home"}, {ID: fmt.Sprintf("cap%d", i%50)}, {ID: fmt.Sprintf("rare%d", i%1000)}}}
		if i%10 == 0 {
			e.Availability, e.Schedule = "schedule", "0 8-22 * * *"
		}
		executors.put(e)
	}
	executors.setRules([]thread.Rule{{Capability: "cap7", Prefer: []string{"e00007", "e00057"}}, {Default: true, By: "lower_latency"}})
	now := time.Now()
	var times []time.Duration
	for b.Loop() {
		th := &thread.Thread{Priority: "normal", Requires: []thread.Need{{ID: "home"}, {ID: fmt.Sprintf("cap%d", len(times)%50)}}}
		start := time.Now()
		if offers := executors.Route(th, now); len(offers) != 200 {
			b.Fatalf("%d offers", len(offers))
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}
