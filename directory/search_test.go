package directory

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
)

func TestSearch(t *testing.T) { // AM-52
	w := newWorld(t)
	for _, c := range []struct {
		id, name, description string
		caps, intents         []string
	}{
		{"am_sarah", "Sarah's Assistant", "Books meetings for Sarah", []string{"scheduling", "Travel"}, []string{"mesh.schedule", "mesh.message"}},
		{"am_chris", "Chris", "Knows Sarah; handles scheduling and research", []string{"research", "scheduling"}, []string{"mesh.message"}},
		{"am_jose", "José Ångström", "Straße und Café", []string{"cooking"}, []string{"com.example.cook"}},
		{"am_kyoto", "京都の案内", "東京と京都を案内します", []string{"travel"}, []string{"mesh.message"}},
		{"am_dot", "node_bot v2.0", "e-mail, C++ & Go", []string{"a b", "x+y", "日本"}, []string{"mesh.message"}},
	} {
		w.register(alice, testCard(c.id, text("name", c.name), text("description", c.description),
			members("capabilities", c.caps...), members("intents", c.intents...)))
	}
	tests := []struct {
		query string
		want  []string
	}{
		{"", []string{"am_sarah", "am_chris", "am_jose", "am_kyoto", "am_dot"}},
		{"capability=scheduling", []string{"am_sarah", "am_chris"}},
		{"capability=Scheduling", nil},
		{"capability=travel", []string{"am_kyoto"}},
		{"capability=sched", nil},
		{"capability=a+b", []string{"am_dot"}},
		{"capability=x%2By", []string{"am_dot"}},
		{"capability=" + url.QueryEscape("日本"), []string{"am_dot"}},
		{"capability=scheduling&capability=research", []string{"am_chris"}},
		{"capability=scheduling&intent=mesh.schedule", []string{"am_sarah"}},
		{"intent=mesh.message&intent=mesh.schedule", []string{"am_sarah"}},
		{"intent=com.example.cook", []string{"am_jose"}},
		{"capability=&intent=&q=&nonsense=1", []string{"am_sarah", "am_chris", "am_jose", "am_kyoto", "am_dot"}},

		{"q=sarah", []string{"am_sarah", "am_chris"}}, // the name ranks before the description (AM-53)
		{"q=SARAH", []string{"am_sarah", "am_chris"}},
		{"q=sarah's", []string{"am_sarah"}},
		{"q=sarah%E2%80%99s", []string{"am_sarah"}}, // a typographic apostrophe
		{"q=sar", []string{"am_sarah", "am_chris"}},
		{"q=arah", nil}, // words and prefixes, not substrings
		{"q=sarah+assistant", []string{"am_sarah"}},
		{"q=assist+sarah", nil}, // only the last word is a prefix
		{"q=meetings+assistant", []string{"am_sarah"}},
		{"q=sarah&capability=research", []string{"am_chris"}},
		{"q=sarah&q=scheduling", []string{"am_chris"}},
		{"q=jose", []string{"am_jose"}},
		{"q=JOSE%CC%81", []string{"am_jose"}}, // a combining accent
		{"q=angstrom", []string{"am_jose"}},
		{"q=strasse", []string{"am_jose"}},
		{"q=cafe", []string{"am_jose"}},
		{"q=" + url.QueryEscape("京都"), []string{"am_kyoto"}},
		{"q=" + url.QueryEscape("東京"), []string{"am_kyoto"}},
		{"q=" + url.QueryEscape("東都"), nil},
		{"q=" + url.QueryEscape("京"), []string{"am_kyoto"}},
		{"q=node_bot", []string{"am_dot"}},
		{"q=bot", []string{"am_dot"}},
		{"q=v2.0", []string{"am_dot"}},
		{"q=mail", []string{"am_dot"}},
		{"q=bot+%F0%9F%99%82", []string{"am_dot"}},
		{"capability=" + strings.Repeat("x", 2000), nil},
	}
	for _, tt := range tests {
		t.Run(tt.query, func(t *testing.T) {
			if ids, _ := w.list(tt.query); !cmp.Equal(ids, tt.want) {
				t.Errorf("GET ?%s finds %v, want %v", tt.query, ids, tt.want)
			}
		})
	}
	for _, q := range []string{"!!", "🙂", " ", "❤️ 👩‍💻"} {
		if got := w.do("GET", "/v1/agents?q="+url.QueryEscape(q), ""); got.Code != 400 || !goldentest.Says(t, "no letter or digit", got.Body.String()) {
			t.Errorf("q=%s: %d %s, want why it finds nothing", q, got.Code, got.Body)
		}
	}
	if got := w.do("GET", "/v1/agents?q=nobody", "").Body.String(); got != `{"agents":[],"verification":{}}` {
		t.Errorf("an empty list is written %s", got)
	}
}

func TestTiers(t *testing.T) { // AM-53
	w := newWorld(t)
	for _, c := range []struct{ id, name, description string }{
		{"am_1", "other", "a plan in words"},
		{"am_2", "planner", ""},
		{"am_3", "plan", ""},
		{"am_4", "unrelated", "planning"},
		{"am_5", "the plan", "plan"},
	} {
		w.register(alice, testCard(c.id, text("name", c.name), text("description", c.description)))
	}
	var walked []string
	for cursor := ""; ; {
		ids, next := w.list("limit=1&q=plan&cursor=" + cursor)
		walked = append(walked, ids...)
		if cursor = next; next == "" {
			break
		}
	}
	if want := []string{"am_3", "am_5", "am_2", "am_1", "am_4"}; !cmp.Equal(walked, want) {
		t.Errorf("page by page: %v, want %v", walked, want)
	}
	if ids, _ := w.list("q=plan"); !cmp.Equal(ids, walked) {
		t.Errorf("in one page: %v, want %v", ids, walked)
	}
}

func TestBadQueries(t *testing.T) { // AM-52
	w := newWorld(t)
	for query, status := range map[string]int{
		"limit=1": 200, "limit=100": 200, "limit=0": 400, "limit=101": 400, "limit=x": 400, "limit=": 400,
		"limit=-1": 400, "limit=%2B5": 400, "limit=1e1": 400, "limit=99999999999999999999": 400,
		"q=" + strings.Repeat("x", 256):    200,
		"q=" + strings.Repeat("x", 257):    400,
		"q=a+b+c+d+e+f+g+h":                200,
		"q=a+b+c+d+e+f+g+h+i":              400,
		"q=%ff":                            400,
		"q=%zz":                            400,
		"cursor=x":                         400,
		strings.Repeat("capability=x&", 1): 200,
	} {
		if got := w.do("GET", "/v1/agents?"+query, ""); got.Code != status {
			t.Errorf("?%s = %d %s, want %d", query, got.Code, got.Body, status)
		}
	}
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprint("capability=", i))
	}
	want(t, w.do("GET", "/v1/agents?"+strings.Join(many, "&"), ""), 400, "INVALID_MESSAGE")
}

// TestPageWalk changes the directory while a client reads it page by page: a card that is there all the time appears
// exactly once and in order (AM-53).
func TestPageWalk(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		query := rapid.SampledFrom([]string{"", "capability=scheduling", "q=agent", "q=ag&capability=scheduling", "q=agent&capability_prefix=sch"}).Draw(rt, "query")
		next := 0
		tier := map[string]int{} // of q=agent
		add := func() {
			id := fmt.Sprintf("am_%03d", next)
			next++
			switch tier[id] = rapid.IntRange(0, 2).Draw(rt, "tier"); tier[id] {
			case 0:
				w.register(alice, testCard(id))
			case 1:
				w.register(alice, testCard(id, text("name", "agentic "+id)))
			case 2:
				w.register(alice, testCard(id, text("name", "card "+id), text("description", "of an agent")))
			}
		}
		for range rapid.IntRange(0, 12).Draw(rt, "cards") {
			add()
		}
		alive := map[string]bool{}
		for i := range next {
			alive[fmt.Sprintf("am_%03d", i)] = true
		}
		var walked []string
		cursor := ""
		for {
			ids, following := w.list(fmt.Sprintf("limit=%d&%s&cursor=%s", rapid.IntRange(1, 4).Draw(rt, "limit"), query, cursor))
			walked = append(walked, ids...)
			if cursor = following; cursor == "" {
				break
			}
			if next < 40 && rapid.Bool().Draw(rt, "insert") {
				add()
			}
			if rapid.Bool().Draw(rt, "delete") && next > 0 {
				id := fmt.Sprintf("am_%03d", rapid.IntRange(0, next-1).Draw(rt, "which"))
				if got := w.do("DELETE", "/v1/agents/"+id, "", withBearer(alice)...); got.Code == 204 {
					delete(alive, id)
				}
			}
			if rapid.Bool().Draw(rt, "renew") && next > 0 {
				w.do("PUT", fmt.Sprintf("/v1/agents/am_%03d", rapid.IntRange(0, next-1).Draw(rt, "renewed")), "", withBearer(alice)...)
			}
		}
		place := func(id string) string {
			rank := 0
			switch {
			case strings.HasPrefix(query, "q=agent"):
				rank = tier[id]
			case strings.HasPrefix(query, "q=ag") && tier[id] == 2: // the others have "ag" as a prefix in the name
				rank = 1
			}
			return fmt.Sprint(rank, id)
		}
		if !slices.IsSortedFunc(walked, func(a, b string) int { return strings.Compare(place(a), place(b)) }) {
			rt.Fatalf("the walk of %q is out of order: %v, tiers %v", query, walked, tier)
		}
		if slices.Sort(walked); len(slices.Compact(slices.Clone(walked))) != len(walked) {
			rt.Fatalf("the walk of %q repeats: %v", query, walked)
		}
		for id := range alive {
			if !slices.Contains(walked, id) {
				rt.Fatalf("%s was there all the time and did not come: %v", id, walked)
			}
		}
	})
}

func TestTermsAreBounded(t *testing.T) {
	runes := make([]rune, 1024)
	for i := range runes {
		runes[i] = rune(0x4e00 + i)
	}
	caps := make([]string, 64)
	for i := range caps {
		caps[i] = fmt.Sprint("capability-", i)
	}
	w := newWorld(t)
	card := testCard("am_a", text("name", string(runes[:256])), text("description", string(runes)), members("capabilities", caps...))
	w.register(alice, card)
	parsed, err := wire.ParseCard(card, wire.CardRules{})
	if err != nil {
		t.Fatal(err)
	}
	list := searchTerms(parsed)
	if len(list) > 512 {
		t.Errorf("%d terms, want at most 512", len(list))
	}
	if ids, _ := w.list("q=" + url.QueryEscape(string(runes[:2]))); len(ids) != 1 {
		t.Errorf("the head of the name finds %v", ids)
	}
}
