package exchange

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// ids returns the executors of offers or, with notified, those that get a notice.
func ids(offers []registry.Offer, notified bool) string {
	var out []string
	for _, o := range offers {
		if !notified || o.Notify {
			out = append(out, o.ID)
		}
	}
	return strings.Join(out, " ")
}

// TestRouting: which executors may claim a thread, which get a notice, and in which order (MESS-41 to MESS-43).
func TestRouting(t *testing.T) {
	l := newLab(t)
	for _, block := range []string{
		"- config: {executor: {id: a, capabilities: [knife, {kitchen: {level: expert}}]}}",
		"- config: {executor: {id: b, capabilities: [{knife: {level: 3}}, kitchen, spoon]}}",
		"- config: {executor: {id: c, capabilities: [knife], availability: on_demand}}",
		"- config: {executor: {id: d, capabilities: [knife, kitchen], availability: schedule, schedule: '0 8-22 * * *', timezone: Europe/Berlin}}",
	} {
		l.do(thread.OwnerID, block)
	}
	noon := time.Date(2026, 1, 31, 11, 0, 0, 0, time.UTC)
	night := time.Date(2026, 1, 31, 2, 0, 0, 0, time.UTC)
	needs := func(list ...string) []thread.Need {
		var out []thread.Need
		for _, id := range list {
			out = append(out, thread.Need{ID: id})
		}
		return out
	}
	th := &thread.Thread{Requester: "x", Requires: needs("knife", "kitchen")}
	if got := ids(l.Executors.Route(th, noon), false); got != "a b d" {
		t.Errorf("eligible = %s", got)
	}
	if got := ids(l.Executors.Route(th, night), true); got != "a b" {
		t.Errorf("notified at night = %s", got)
	}
	if got := ids(l.Executors.Route(&thread.Thread{Requester: "a", Requires: th.Requires}, noon), false); got != "b d" {
		t.Errorf("eligible for a request of a = %s", got)
	}
	if got := ids(l.Executors.Route(&thread.Thread{Requires: needs("knife", "unknown")}, noon), false); got != "" {
		t.Errorf("eligible for the unknown = %s", got)
	}
	if got := ids(l.Executors.Route(&thread.Thread{}, noon), false); got != "a b c d" {
		t.Errorf("without requires = %s", got)
	}
	l.do(thread.OwnerID, "- config: {routing: {rules: [{match: {capability: knife, urgency: now}, prefer: [c, b]}, {match: {precision: exact}, prefer: higher_precision}, {default: lower_latency}]}}")
	l.refuse(403, "a", "- config: {routing: {rules: []}}")
	l.refuse(403, "a", "- config: {executor: {id: b}}")
	l.refuse(400, thread.OwnerID, "- config: {executor: {id: owner}}")
	l.refuse(400, thread.OwnerID, "- config: {executor: {id: e, availability: schedule, schedule: '* * * * * *'}}")
	l.refuse(400, thread.OwnerID, "- config: {executor: {id: e, availability: schedule}}")
	now := &thread.Thread{Requires: needs("knife"), Urgency: "now"}
	if got := ids(l.Executors.Route(now, noon), true); got != "c b a d" {
		t.Errorf("preferred = %s", got)
	}
	exact := &thread.Thread{Requires: needs("knife", "kitchen"), Precision: "exact"}
	if got := ids(l.Executors.Route(exact, noon), false); got != "a b d" {
		t.Errorf("by precision = %s", got)
	}
	for who, took := range map[string]time.Duration{"a": time.Hour, "b": time.Minute, "d": time.Second} {
		l.Executors.Publish(registry.Update{Claims: []registry.Claim{{ID: who, Took: took, At: noon}}})
	}
	if got := ids(l.Executors.Route(th, noon), false); got != "d b a" {
		t.Errorf("by latency = %s", got)
	}
	l.do("a", "- config: {executor: {id: a, capabilities: [spoon]}}") // for itself
	if got := ids(l.Executors.Route(&thread.Thread{Requires: needs("spoon")}, noon), false); got != "b a" && got != "a b" {
		t.Errorf("after the change = %s", got)
	}
	again := labOn(t, l.store)
	if err := again.Load(); err != nil {
		t.Fatal(err)
	}
	if got := ids(again.Executors.Route(now, noon), true); got != "c b d" {
		t.Errorf("after a restart = %s", got)
	}
}

// TestOnDuty: cron expressions at their edges, in two time zones (MESS-43).
func TestOnDuty(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		expr, at string
		zone     *time.Location
		want     bool
	}{
		{"0 8-22 * * *", "2026-01-31T07:59:59Z", time.UTC, false},
		{"0 8-22 * * *", "2026-01-31T08:00:00Z", time.UTC, true},
		{"0 8-22 * * *", "2026-01-31T21:59:00Z", time.UTC, true},
		{"0 8-22 * * *", "2026-01-31T22:00:59Z", time.UTC, true},
		{"0 8-22 * * *", "2026-01-31T22:01:00Z", time.UTC, false},
		{"0 8-22 * * *", "2026-01-31T07:00:00Z", berlin, true},
		{"0 8-22 * * *", "2026-01-31T21:01:00Z", berlin, false},
		{"* 8-9 * * 1-5", "2026-02-02T08:30:00Z", time.UTC, true},
		{"* 8-9 * * 1-5", "2026-02-01T08:30:00Z", time.UTC, false},
		{"*/5 * * * *", "2026-02-01T08:31:00Z", time.UTC, false},
		{"*/5 * * * *", "2026-02-01T08:30:00Z", time.UTC, true},
	} {
		at, err := time.Parse(time.RFC3339, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		got, until := thread.IsScheduled(tt.expr, at.In(tt.zone))
		if got != tt.want {
			t.Errorf("%q at %s in %s: %t, want %t", tt.expr, tt.at, tt.zone, got, tt.want)
		}
		if !until.After(at) {
			t.Errorf("%q at %s holds until %s", tt.expr, tt.at, until)
		}
	}
}

// TestAutoClaim: an executor with a matching pattern claims the thread at once.
func TestAutoClaim(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	e := *l.Executors.Get("bob")
	e.Preferences.AutoClaim = []string{"^water "}
	l.Executors.Publish(registry.Update{Executors: []*registry.Executor{&e}})
	th := l.want(l.request("agent", "{intent: water the roses}"), thread.Claimed)
	if m, err := l.Message(t.Context(), th.Ref, 2); err != nil || !strings.Contains(string(m.Mess.JSON()), `"executor":"bob"`) {
		t.Errorf("the claim is %s, %v", m.Mess.JSON(), err)
	}
	l.want(l.request("agent", "{intent: paint the fence}"), thread.Received)
}

// TestQueries: queries return what the actor may see, filtered by every condition (MESS-36).
func TestQueries(t *testing.T) {
	l := newLab(t)
	l.executor("bob", "knife")
	l.executor("eve", "spoon")
	if err := l.Executors.AddCapabilities(t.Context(), []registry.Capability{{ID: "knife", Description: "cuts", Tags: []string{"sharp"}}, {ID: "spoon", Description: "stirs", Tags: []string{"round"}}}); err != nil {
		t.Fatal(err)
	}
	a := l.request("agent", "{id: a, intent: dice, requires: [knife]}")
	l.request("agent", "{intent: stir, requires: [spoon]}")
	l.request("other", "{intent: secret, requires: [gun]}")
	l.status("bob", a, "claimed")
	query := func(who, q string) string {
		t.Helper()
		r := l.do(who, "- query: {type: "+q+"}")
		content, _ := answerOf(r, "response").Get("content")
		v, _ := content.At(0).Get("structured")
		var out []string
		for _, list := range []string{"requests", "executors", "capabilities"} {
			items, _ := v.Get(list)
			for e := range items.Elems() {
				out = append(out, e.GetStr("intent")+e.GetStr("name")+map[bool]string{true: e.GetStr("id")}[list != "requests"])
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	for _, tt := range []struct{ who, q, want string }{
		{"agent", "status", "dice stir"}, {"bob", "status", "dice"}, {"eve", "status", "stir"}, {"stranger", "status", ""}, {thread.OwnerID, "status", "dice secret stir"},
		{"agent", "status, filter: {status: [claimed]}", "dice"}, {"agent", "status, filter: {status: pending, executor: bob}", ""}, {"agent", "status, filter: {executor: bob, re: [a]}", "dice"},
		{"agent", "status, filter: {since: '2099-01-01T00:00:00Z'}", ""}, {"agent", "executors", "bob eve"}, {"agent", "executors, filter: {tags: [sharp, x]}", "bob"},
		{"agent", "capabilities, filter: {tags: [round]}", "spoon"}, {"agent", "capabilities", "knife spoon"},
	} {
		if got := query(tt.who, tt.q); got != tt.want {
			t.Errorf("%s asks %s: %q, want %q", tt.who, tt.q, got, tt.want)
		}
	}
	l.refuse(400, "agent", "- query: {type: everything}")
	l.refuse(404, "agent", "- query: {type: status, filter: {re: nothing}}")
}

// TestSpans: durations in both notations (MESS-18), and the public test cases for those of ISO 8601.
func TestSpans(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"45m": 45 * time.Minute, "2h15m": 135 * time.Minute, "7h": 7 * time.Hour, "3d": 72 * time.Hour, "1w": 168 * time.Hour, "1w2d3h4m5s": 219*time.Hour + 4*time.Minute + 5*time.Second,
		"PT45M": 45 * time.Minute, "P1D": 24 * time.Hour, "P1W": 168 * time.Hour, "PT1H30M": 90 * time.Minute, "PT0.5S": time.Second / 2,
	} {
		if got, ok := thread.ParseSpan(s); !ok || got != want {
			t.Errorf("ParseSpan(%q) = %v, %t, want %v", s, got, ok, want)
		}
	}
	for _, s := range []string{"", "0m", "-1h", "1h2d", "1h1h", "h", "1", "1.5h", "1y", "P", "PT", "P1", "p1d", "1 h", "PT1", "99999999w", strings.Repeat("1", 100) + "m", "P1DT", "PT36H1M2X"} {
		if got, ok := thread.ParseSpan(s); ok {
			t.Errorf("ParseSpan(%q) = %v", s, got)
		}
	}
}

func TestSpanCorpus(t *testing.T) {
	root := os.Getenv("AGENTMESH_CORPORA")
	if root == "" {
		t.Skip("AGENTMESH_CORPORA names no folder with test data")
	}
	data, err := os.ReadFile(filepath.Join(root, "jsonschema-formats", "duration.json"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := wire.ParseLimits(data, 20, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	// The corpus follows the grammar of RFC 3339. ISO 8601 itself allows units to be left out and the last one to have
	// a fraction.
	iso := []string{"PT0.5S", "P1Y2D", "PT1H2S"}
	cases := 0
	for group := range v.Elems() {
		tests, _ := group.Get("tests")
		for e := range tests.Elems() {
			data, _ := e.Get("data")
			s, ok := data.Str()
			valid, _ := e.Get("valid")
			if want, _ := valid.Boolean(); ok && !want {
				cases++
				if _, got := thread.ParseSpan(s); got && strings.HasPrefix(s, "P") && !slices.Contains(iso, s) {
					t.Errorf("ParseSpan(%q) is taken, the corpus calls it invalid", s)
				}
			}
		}
	}
	if cases < 10 {
		t.Errorf("%d cases", cases)
	}
}

// TestDeclineWithOffer: a thread that a peer may still claim does not end because the executors here decline. It ends
// when the peer declines too (MESS-24).
func TestDeclineWithOffer(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: dig}")
	sent := func(_ string, _ wire.Value, changes []store.Change) error {
		return l.records.Apply(t.Context(), changes, time.Now())
	}
	if err := l.OfferTo(t.Context(), ref, "am_peer", "", nil, sent); err != nil {
		t.Fatal(err)
	}
	l.executor("bob")
	l.status("bob", ref, "declined, reason: busy")
	l.want(ref, thread.Received)
	if err := l.GiveUp(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	l.want(ref, thread.Received)
	l.status("am_peer", ref, "declined, reason: busy")
	l.want(ref, thread.Declined)
}

// TestQueryOfManyThreads: the filters of a query apply to all threads, and not only to the newest ones. A peer that is
// not registered here sees the threads that it holds (MESS-36, MESS-56).
func TestQueryOfManyThreads(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: dig}")
	sent := func(_ string, _ wire.Value, changes []store.Change) error {
		return l.records.Apply(t.Context(), changes, time.Now())
	}
	if err := l.OfferTo(t.Context(), ref, "am_peer", "", nil, sent); err != nil {
		t.Fatal(err)
	}
	l.status("am_peer", ref, "claimed")
	for i := range maxResults + 1 {
		l.index.publish(&thread.Thread{
			Ref: fmt.Sprintf("2026-01-31-%d", i), Requester: "agent", Status: thread.Completed, Intent: "x", Updated: time.Now().Add(time.Minute), Version: 1,
		})
	}
	for _, tt := range []struct{ who, filter string }{{"agent", "status: [claimed]"}, {"agent", "executor: am_peer"}, {"am_peer", ""}} {
		answer := answerOf(l.do(tt.who, "- query: {type: status, filter: {"+tt.filter+"}}"), "response")
		if !strings.Contains(string(answer.JSON()), ref) {
			t.Errorf("%s asks for {%s} and gets %.200s", tt.who, tt.filter, answer.JSON())
		}
	}
}
