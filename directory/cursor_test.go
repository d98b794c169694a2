package directory

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newWorldWithCards is a directory with n cards, from am_000.
func newWorldWithCards(t testing.TB, n int, change ...func(*Config)) *world {
	w := newWorld(t, change...)
	for i := range n {
		w.register(alice, testCard(fmt.Sprintf("am_%03d", i)))
	}
	return w
}

func (w *world) list(query string) ([]string, string) {
	w.t.Helper()
	return decodeList(w.t, w.do("GET", "/v1/agents?"+query, ""))
}

func TestCursor(t *testing.T) { // AM-54
	w := newWorldWithCards(t, 25)
	ids, cursor := w.list("limit=10")
	if len(ids) != 10 || cursor == "" {
		t.Fatalf("first page: %v, %q", ids, cursor)
	}
	if strings.Trim(cursor, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		t.Errorf("cursor %q is not URL-safe", cursor)
	}
	data, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		t.Fatal(err)
	}
	if doc, err := wire.ParseObject(data); err != nil || doc.GetStr("last") != "am_009" {
		t.Errorf("cursor holds %s, want the last id as in the specification's example", data)
	}
	// The limit may change from page to page.
	rest, end := w.list("limit=15&cursor=" + cursor)
	if len(rest) != 15 || rest[0] != "am_010" || end != "" {
		t.Errorf("second page: %v, %q; want 15 and no cursor on an exactly full last page", rest, end)
	}
	bad := map[string]string{
		"other filters":     "capability=scheduling&cursor=" + cursor,
		"another q":         "q=agent&cursor=" + cursor,
		"the reference's":   "cursor=" + url.QueryEscape("YW1fMDA5"),
		"padding":           "cursor=" + cursor + "%3D",
		"trailing newline":  "cursor=" + cursor + "%0A",
		"a longer text":     "cursor=" + cursor + "AA",
		"a shorter text":    "cursor=" + cursor[:len(cursor)-1],
		"not base64":        "cursor=!",
		"far too long":      "cursor=" + strings.Repeat("A", 4000),
		"another directory": "cursor=" + foreignCursor(t),
	}
	for name, query := range bad {
		got := w.do("GET", "/v1/agents?"+query, "")
		if got.Code != 400 || errorCode(got.Body.Bytes()) != "INVALID_MESSAGE" {
			t.Errorf("%s = %d %s, want 400", name, got.Code, got.Body)
		}
	}
}

func foreignCursor(t *testing.T) string {
	_, cursor := newWorldWithCards(t, 2).list("limit=1")
	return cursor
}

func TestEveryFlippedByteOfACursor(t *testing.T) { // AM-54, THREATS row 14
	w := newWorldWithCards(t, 3)
	_, cursor := w.list("limit=1&q=agent")
	for i := range len(cursor) {
		for bit := range 8 {
			flipped := []byte(cursor)
			flipped[i] ^= 1 << bit
			got := w.do("GET", "/v1/agents?limit=1&q=agent&cursor="+url.QueryEscape(string(flipped)), "")
			if got.Code != 400 {
				t.Fatalf("byte %d, bit %d flipped: %d %s, want 400", i, bit, got.Code, got.Body)
			}
		}
	}
}

func TestCursorOutlivesTheProcess(t *testing.T) {
	w := newWorldWithCards(t, 3)
	_, cursor := w.list("limit=1")
	again := newWorldOver(t, w.store)
	if ids, _ := again.list("limit=1&cursor=" + cursor); len(ids) != 1 || ids[0] != "am_001" {
		t.Errorf("after a restart the cursor leads to %v, want am_001", ids)
	}
}

func TestSpellingsOfTheSameFilters(t *testing.T) {
	w := newWorldWithCards(t, 3)
	_, cursor := w.list("limit=1&capability=scheduling&intent=mesh.schedule&q=AGENT")
	ids, _ := w.list("intent=mesh.schedule&capability=scheduling&capability=scheduling&unknown=1&q=agent&cursor=" + cursor)
	if len(ids) != 2 {
		t.Errorf("the same filters in another order find %v", ids)
	}
}

// TestLongestCursor: a name whose every character has an escape in JSON makes the longest cursor.
func TestLongestCursor(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_x", members("capabilities", strings.Repeat("<", 128), "z")))
	_, cursor, err := w.reg.listNames(t.Context(), capFamily, Query{Limit: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := w.do("GET", "/v1/capabilities?limit=1&cursor="+cursor, ""); strings.TrimSpace(got.Body.String()) != `{"capabilities":[{"name":"z","agents":1}]}` {
		t.Errorf("the page after the longest name = %d %s", got.Code, got.Body)
	}
}

func TestFilterHashTellsPartsApart(t *testing.T) {
	seen := map[cursor.Filters]string{}
	for _, q := range []Query{
		{}, {Text: "a"}, {Text: "a b"}, {Text: "b a"}, {Capabilities: []string{"a"}}, {Intents: []string{"a"}},
		{Capabilities: []string{"a", "b"}}, {Capabilities: []string{"a"}, Text: "b"}, {Capabilities: []string{"q"}},
	} {
		p, err := q.plan()
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[p.filters]; ok {
			t.Errorf("%+v and %s hash alike", q, other)
		}
		seen[p.filters] = fmt.Sprintf("%+v", q)
	}
}
