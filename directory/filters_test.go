package directory

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/wire"
)

func obj(key string, members ...wire.Member) wire.Member {
	return wire.Member{Key: key, Value: wire.Obj(members...)}
}

func TestFilters(t *testing.T) { // AM-52
	w := newWorld(t)
	w.register(alice, testCard("am_1", members("capabilities", "translate.de", "travel"),
		obj("owner", text("name", "Müller & Söhne"), text("contact", "hans@mueller.example")),
		obj("metadata", text("agent_framework", "OpenClaw 2"), text("location", "Köln, Germany"))))
	w.register(alice, testCard("am_2", members("capabilities", "translate.fr"),
		obj("owner", text("name", "Sarah Müller")), obj("metadata", text("agent_framework", "langgraph")),
		obj("availability", text("timezone", "America/Los_Angeles"))))
	w.register(alice, testCard("am_3", members("capabilities", "travel"), text("name", "Plan Müller"),
		obj("metadata", obj("location", text("city", "Los Alamos"), text("country", "US")), text("timezone", "Europe/Berlin"))))
	for _, tt := range []struct {
		query string
		want  []string
	}{
		{"capability_prefix=translate", []string{"am_1", "am_2"}},
		{"capability_prefix=translate&capability_prefix=tra&capability=travel", []string{"am_1"}},
		{"capability_prefix=Translate", nil},
		{"capability_prefix=" + strings.Repeat("x", 600), nil},
		{"capability_prefix=tra&q=plan", []string{"am_3"}},
		{"owner=muller", []string{"am_1", "am_2"}},
		{"owner=Sarah+MÜLLER", []string{"am_2"}},
		{"owner=mull", nil},
		{"owner=hans", nil}, // contact data are not searched
		{"owner=mueller.example", nil},
		{"q=mueller", nil},
		{"framework=openclaw", []string{"am_1"}},
		{"framework=LangGraph", []string{"am_2"}},
		{"location=koln", []string{"am_1"}},
		{"location=los+angeles", []string{"am_2"}},
		{"location=America/Los_Angeles", []string{"am_2"}},
		{"location=los", []string{"am_2", "am_3"}},
		{"location=berlin", []string{"am_3"}},
		{"location=alamos&location=us", []string{"am_3"}},
		{"verified=key", nil},
		{"owner=muller&framework=openclaw&location=germany&capability=travel&q=agent", []string{"am_1"}},
		{"owner=&framework=&location=&verified=&capability_prefix=", []string{"am_1", "am_2", "am_3"}},
	} {
		if ids, _ := w.list(strings.ReplaceAll(tt.query, "Ü", url.QueryEscape("Ü"))); !cmp.Equal(ids, tt.want) {
			t.Errorf("GET ?%s finds %v, want %v", tt.query, ids, tt.want)
		}
	}
	for _, bad := range []string{
		"location=%21", "owner=%F0%9F%99%82",
		"verified=maybe", "owner=" + strings.Repeat("x", 257), "location=a+b+c+d+e+f+g+h+i",
		"capability_prefix=a&capability_prefix=b&capability_prefix=c&capability_prefix=d",
	} {
		want(t, w.do("GET", "/v1/agents?"+bad, ""), 400, "INVALID_MESSAGE")
	}
}

// TestFilterCursors: a cursor is refused if a filter changed between two pages (AM-54).
func TestFilterCursors(t *testing.T) {
	w := newWorldWithCards(t, 3)
	_, after := w.list("limit=1&capability_prefix=sch")
	for _, other := range []string{"capability_prefix=sc", "capability=scheduling", "", "capability_prefix=sch&location=x"} {
		want(t, w.do("GET", "/v1/agents?limit=1&"+other+"&cursor="+after, ""), 400, "INVALID_MESSAGE")
	}
	if ids, _ := w.list("limit=2&capability_prefix=sch&cursor=" + after); len(ids) != 2 {
		t.Errorf("second page: %v", ids)
	}
}

func TestVocabulary(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		caps := []string{"all"}
		for j := range i {
			caps = append(caps, fmt.Sprintf("tag.%d", j))
		}
		w.register(alice, testCard(fmt.Sprintf("am_%d", i), members("capabilities", caps...), members("intents", "mesh.message", fmt.Sprintf("x.y%d", i))))
	}
	page := func(path, query string) (names []string, cursor string) {
		t.Helper()
		got := w.do("GET", "/v1/"+path+"?"+query, "")
		var doc struct {
			Capabilities, Intents []NameCount
			Cursor                string
		}
		if err := json.Unmarshal(got.Body.Bytes(), &doc); err != nil || got.Code != 200 {
			t.Fatalf("GET %s?%s = %d %s", path, query, got.Code, got.Body)
		}
		for _, c := range append(doc.Capabilities, doc.Intents...) {
			names = append(names, fmt.Sprint(c.Name, " ", c.Agents))
		}
		return names, doc.Cursor
	}
	var walked []string
	cursor := ""
	for {
		names, next := page("capabilities", "limit=2&cursor="+cursor)
		walked = append(walked, names...)
		if cursor = next; cursor == "" {
			break
		}
		want(t, w.do("GET", "/v1/intents?cursor="+cursor, ""), 400, "INVALID_MESSAGE") // of another list
		want(t, w.do("GET", "/v1/agents?cursor="+cursor, ""), 400, "INVALID_MESSAGE")
	}
	if want := []string{"all 5", "tag.0 4", "tag.1 3", "tag.2 2", "tag.3 1"}; !cmp.Equal(walked, want) {
		t.Errorf("capabilities %v, want %v", walked, want)
	}
	if names, _ := page("capabilities", "prefix=tag.&limit=100"); len(names) != 4 {
		t.Errorf("with a prefix: %v", names)
	}
	if names, _ := page("intents", ""); len(names) != 6 || names[0] != "mesh.message 5" {
		t.Errorf("intents %v", names)
	}
	before := len(w.reg.nameCounts.pages)
	for limit := range 100 {
		page("capabilities", fmt.Sprint("limit=", limit+1))
	}
	if n := len(w.reg.nameCounts.pages); n != before {
		t.Errorf("the same names with other limits are counted %d times more", n-before)
	}
	want(t, w.do("GET", "/v1/capabilities?limit=101", ""), 400, "INVALID_MESSAGE")
	for i := range 3 * maxCountedPages { // the cache does not grow with the requests of strangers
		page("capabilities", fmt.Sprint("prefix=", i))
	}
	if n := len(w.reg.nameCounts.pages); n > maxCountedPages {
		t.Errorf("%d pages are kept, want at most %d", n, maxCountedPages)
	}
}

func TestListCaching(t *testing.T) { // AM-59
	w := newWorldWithCards(t, 30)
	plain := w.do("GET", "/v1/agents", "")
	packed := w.do("GET", "/v1/agents", "", "Accept-Encoding", "br, gzip")
	if packed.Header().Get("Content-Encoding") != "gzip" || packed.Body.Len()*3 > plain.Body.Len() {
		t.Errorf("gzip answers %q with %d bytes, plain has %d", packed.Header().Get("Content-Encoding"), packed.Body.Len(), plain.Body.Len())
	}
	r, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(r); err != nil || string(data) != plain.Body.String() {
		t.Errorf("unpacked, it is not the same: %v", err)
	}
	tag, packedTag := plain.Header().Get("Etag"), packed.Header().Get("Etag")
	if tag == packedTag || tag == "" || !strings.Contains(packed.Header().Get("Vary"), "Accept-Encoding") {
		t.Errorf("tags %s and %s, vary %q", tag, packedTag, packed.Header().Get("Vary"))
	}
	for _, known := range []string{tag, packedTag, "W/" + tag, `"x", ` + packedTag, "*"} {
		if got := w.do("GET", "/v1/agents", "", "If-None-Match", known, "Accept-Encoding", "gzip"); got.Code != http.StatusNotModified || got.Body.Len() > 0 {
			t.Errorf("If-None-Match %s = %d", known, got.Code)
		}
	}
	for _, takes := range []string{"", "br", "gzip;q=0", "gzip; q=0.0, br", "identity", "*, gzip;q=0", "gzip;q=0, *"} {
		if got := w.do("GET", "/v1/agents", "", "Accept-Encoding", takes); got.Header().Get("Content-Encoding") != "" {
			t.Errorf("Accept-Encoding %q gets %q", takes, got.Header().Get("Content-Encoding"))
		}
	}
	for _, takes := range []string{"*;q=0, gzip", "gzip, *;q=0", "*", "identity;q=0.5, *"} {
		if got := w.do("GET", "/v1/agents", "", "Accept-Encoding", takes); got.Header().Get("Content-Encoding") != "gzip" {
			t.Errorf("Accept-Encoding %q gets no gzip", takes)
		}
	}
	if got := w.do("GET", "/v1/agents?limit=1", "", "Accept-Encoding", "gzip"); got.Header().Get("Content-Encoding") != "" {
		t.Errorf("%d bytes are compressed", got.Body.Len())
	}
	head := w.do("HEAD", "/v1/agents", "")
	if head.Code != 200 || head.Body.Len() != 0 || head.Header().Get("Content-Length") != plain.Header().Get("Content-Length") || head.Header().Get("Etag") != tag {
		t.Errorf("HEAD = %d, %d bytes, %v", head.Code, head.Body.Len(), head.Header())
	}
	for _, path := range []string{"/v1/agents", "/v1/capabilities", "/v1/intents"} {
		h := w.do("GET", path, "").Header()
		if h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Cache-Control") != listAge || h.Get("Etag") == "" {
			t.Errorf("GET %s is answered with %v", path, h)
		}
	}
}
