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

// TestRouting: which executors may claim a thread, and what the owner may set (MESS-41 to MESS-43).
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
	for _, tt := range []struct {
		requester, requires, want string
	}{{"x", "knife, kitchen", "a b d"}, {"a", "knife, kitchen", "b d"}, {"x", "knife, unknown", ""}, {"x", "", "a b c d"}} {
		th := l.thread(l.request(tt.requester, "{intent: dice, requires: ["+tt.requires+"]}"))
		var can []string
		for _, id := range []string{"a", "b", "c", "d"} {
			if id != tt.requester && l.Executors.CanClaim(id, th) {
				can = append(can, id)
			}
		}
		if got := strings.Join(can, " "); got != tt.want || l.Executors.HasNoCandidate(th) != (tt.want == "") {
			t.Errorf("of %s, requires %s: %s can claim it, want %s", tt.requester, tt.requires, got, tt.want)
		}
	}
	const rules = "[{match: {capability: knife, urgency: now}, prefer: [c, b]}, {match: {precision: exact}, prefer: higher_precision}, {default: lower_latency}]"
	l.do(thread.OwnerID, "- config: {routing: {rules: "+rules+"}}")
	l.refuse(403, "a", "- config: {routing: {rules: []}}")
	l.refuse(403, "a", "- config: {executor: {id: b}}")
	l.refuse(400, thread.OwnerID, "- config: {executor: {id: owner}}")
	l.refuse(400, thread.OwnerID, "- config: {executor: {id: e, availability: schedule, schedule: '* * * * * *'}}")
	l.refuse(400, thread.OwnerID, "- config: {routing: {rule: []}}")  // it must not delete the rules
	l.do("a", "- config: {executor: {id: a, capabilities: [spoon]}}") // for itself
	again := labOn(t, l.store)
	if err := again.Load(); err != nil {
		t.Fatal(err)
	}
	const stored = `[{"match":{"capability":"knife","urgency":"now"},"prefer":["c","b"]},{"match":{"precision":"exact"},"prefer":"higher_precision"},{"default":"lower_latency"}]`
	if got, err := again.Executors.Rules(); err != nil || string(got.JSON()) != stored {
		t.Errorf("the rules after a restart: %s, %v", got.JSON(), err)
	}
	if c := again.Executors.Find("d"); c == nil || c.Schedule != "0 8-22 * * *" || c.Timezone != "Europe/Berlin" {
		t.Errorf("d after a restart: %+v", c)
	}
	l.do(thread.OwnerID, "- config: {routing: {rules: []}}")
	if got, err := l.Executors.Rules(); err != nil || string(got.JSON()) != "[]" {
		t.Errorf("no rules: %s, %v", got.JSON(), err)
	}
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
