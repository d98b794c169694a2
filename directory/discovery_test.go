package directory

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/directory/discovery"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ardAnswer is an answer to a search or a list.
type ardAnswer struct {
	Results   []ardEntry
	Items     []ardEntry
	Referrals []ardEntry
	PageToken string
	ErrorCode string
	Message   string
}

type ardEntry struct {
	discovery.Entry
	Score  int
	Source string
}

// ard sends a request and decodes the answer.
func (w *world) ard(method, path, body string, status int) ardAnswer {
	w.t.Helper()
	rec := w.do(method, path, body)
	var a ardAnswer
	if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil || rec.Code != status {
		w.t.Errorf("%s %s %s = %d %s, %v; want %d", method, path, body, rec.Code, rec.Body, err, status)
	}
	return a
}

// names returns the agent ids of entries.
func names(list []ardEntry) (ids []string) {
	for _, e := range list {
		ids = append(ids, e.Metadata["agent_id"])
	}
	return ids
}

// newARDWorld returns a directory with four agents.
func newARDWorld(t *testing.T) *world {
	w := newWorld(t, func(c *Config) {
		c.Referrals = []string{"https://mirror.example/ard"}
		c.Entries = func() []discovery.Entry {
			return []discovery.Entry{{
				Identifier: "am_operator", DisplayName: "Operator", Type: discovery.TypeA2A, URL: "https://directory.example/.well-known/agent-card.json",
				RepresentativeQueries: []string{"a", "b"},
			}}
		}
	})
	caps := func(list ...string) wire.Member { return wire.Member{Key: "capabilities", Value: wire.Texts(list)} }
	a2a := func(url string) wire.Member {
		return wire.Member{Key: "metadata", Value: wire.Obj(wire.TextField("a2a", url))}
	}
	w.register(alice, testCard("am_flight", text("name", "Flight booking agent"), caps("travel", "booking"), a2a("https://am-flight.example/.well-known/agent-card.json")))
	w.register(alice, testCard("am_hotel", text("name", "Hotel agent"), text("description", "Booking of rooms"), caps("travel")))
	w.register(alice, testCard("am_law", text("name", "Contracts"), text("description", "Reads contracts"), caps("legal"), wire.Member{Key: "intents", Value: wire.Texts([]string{"mesh.message"})}))
	w.register(alice, testCard("am_liar", text("name", "Liar"), caps("fraud"), a2a("https://victim.example/.well-known/agent-card.json")))
	return w
}

// TestARDManifest: both well-known paths serve the same bytes, with the headers that consumers look for.
func TestARDManifest(t *testing.T) { // DISC-1, DISC-2
	w := newARDWorld(t)
	first := w.do("GET", "/.well-known/ard.json", "")
	second := w.do("GET", "/.well-known/ai-catalog.json", "")
	if first.Code != 200 || first.Body.String() != second.Body.String() {
		t.Fatalf("ard.json = %d %s\nai-catalog.json = %d %s", first.Code, first.Body, second.Code, second.Body)
	}
	for name, value := range map[string]string{"Content-Type": "application/ai-catalog+json", "Access-Control-Allow-Origin": "*"} {
		if got := first.Header().Get(name); got != value {
			t.Errorf("%s = %q, want %q", name, got, value)
		}
	}
	if got := w.do("GET", "/.well-known/ard.json", "", "If-None-Match", first.Header().Get("Etag")); got.Code != http.StatusNotModified {
		t.Errorf("with the entity tag = %d", got.Code)
	}
	if got := w.do("GET", "/.well-known/ard.json", "", "Range", "bytes=0-3"); got.Code != 200 {
		t.Errorf("with a range = %d", got.Code)
	}
	var doc struct {
		Host    struct{ Identifier string }
		Entries []discovery.Entry
	}
	if err := json.Unmarshal(first.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range doc.Entries {
		ids = append(ids, e.Identifier)
	}
	if want := []string{"urn:air:directory.example:registry:agents", "urn:air:directory.example:agent:am_operator"}; !slices.Equal(ids, want) || doc.Host.Identifier != "did:web:directory.example" {
		t.Errorf("manifest of %s lists %v, want %v", doc.Host.Identifier, ids, want)
	}
	if doc.Entries[0].Type != discovery.TypeRegistry || doc.Entries[0].URL != "https://directory.example/ard" {
		t.Errorf("registry = %+v", doc.Entries[0])
	}
	if got := w.do("GET", "/robots.txt", "").Body.String(); !strings.Contains(got, "\nAgentmap: https://directory.example/.well-known/ard.json\n") {
		t.Errorf("robots.txt = %s", got)
	}
	if got := w.do("GET", "/", "").Header().Get("Link"); !strings.Contains(got, `</.well-known/ard.json>; rel="ard"`) {
		t.Errorf("Link = %q", got)
	}
}

// TestNoLocalManifest: a directory of the local profile has no name, so it serves no manifest.
func TestNoLocalManifest(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Local = true })
	for _, path := range []string{"/.well-known/ard.json", "/.well-known/ai-catalog.json", "/robots.txt"} {
		w.ard("GET", path, "", 404)
	}
	if got := w.do("GET", "/", "").Header().Values("Link"); strings.Contains(strings.Join(got, ","), "ard") {
		t.Errorf("Link = %q", got)
	}
}

// TestARDSearch: results are ranked by the words that match, and filters mean OR within a key and AND across keys.
func TestARDSearch(t *testing.T) { // DISC-3
	w := newARDWorld(t)
	for _, tt := range []struct {
		name, query string
		want        []string
	}{
		{"a question", `{"text":"find me a flight booking agent"}`, []string{"am_flight", "am_hotel"}},
		{"one word of a capability", `{"text":"legal"}`, []string{"am_law"}},
		{"no such word", `{"text":"weather"}`, nil},
		{"an empty text", `{"text":""}`, []string{"am_flight", "am_hotel", "am_law", "am_liar"}},
		{"one value or another", `{"text":"","filter":{"capabilities":["legal","travel"]}}`, []string{"am_flight", "am_hotel", "am_law"}},
		{"both keys", `{"text":"","filter":{"capabilities":["legal","travel"],"tags":"mesh.message"}}`, []string{"am_law"}},
		{"text and filter", `{"text":"booking","filter":{"type":["application/a2a-agent-card+json"]}}`, []string{"am_flight"}},
		{"another type", `{"text":"booking","filter":{"type":["application/vnd.agentmesh.card+json","x"]}}`, []string{"am_hotel"}},
		{"both types", `{"text":"booking","filter":{"type":["application/vnd.agentmesh.card+json","application/a2a-agent-card+json"]}}`, []string{"am_flight", "am_hotel"}},
		{"a type that nobody has", `{"text":"booking","filter":{"type":"application/mcp-server-card+json"}}`, nil},
		{"our publisher", `{"text":"legal","filter":{"publisher":"Directory.Example"}}`, []string{"am_law"}},
		{"another publisher", `{"text":"legal","filter":{"publisher":["acme.com"]}}`, nil},
		{"nobody is proven", `{"text":"legal","filter":{"trustManifest.attestations.type":["agentmesh-key"]}}`, nil},
		{"no value", `{"text":"legal","filter":{"tags":[]}}`, nil},
		{"a value that is too long", `{"text":"","filter":{"tags":["` + strings.Repeat("x", 2000) + `"]}}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := w.ard("POST", "/ard/search", `{"query":`+tt.query+`}`, 200)
			ids := names(got.Results)
			if tt.query != `{"text":"find me a flight booking agent"}` {
				slices.Sort(ids)
			}
			if !slices.Equal(ids, tt.want) {
				t.Errorf("found %v, want %v", ids, tt.want)
			}
		})
	}
	w.ard("POST", "/ard/search", `{"query":{"text":"?!"}}`, 400)
	got := w.ard("POST", "/ard/search", `{"query":{"text":"find me a flight booking agent"},"federation":"referrals"}`, 200)
	if len(got.Referrals) != 1 || got.Referrals[0].URL != "https://mirror.example/ard" || got.Referrals[0].Identifier != "urn:air:mirror.example:registry:agents" {
		t.Errorf("referrals = %+v", got.Referrals)
	}
	if got := w.ard("POST", "/ard/search", `{"query":{"text":"flight"},"federation":"none"}`, 200); got.Referrals != nil || got.Results[0].Score != 100 {
		t.Errorf("without referrals = %+v", got)
	}
	for i, r := range got.Results {
		if r.Source != "https://directory.example/ard" || i > 0 && r.Score > got.Results[i-1].Score {
			t.Errorf("result %d = %+v", i, r)
		}
	}
	if r := got.Results[0]; r.URL != "https://am-flight.example/.well-known/agent-card.json" || r.Score != 67 {
		t.Errorf("best = %+v", r)
	}
	// A card may name an A2A card only at the host of its endpoint, because that host is the one that was checked.
	for _, r := range got.Results {
		if strings.Contains(r.URL, "victim") {
			t.Errorf("the entry of %s names a URL of somebody else: %s", r.Identifier, r.URL)
		}
	}
}

// TestARDTrust: an entry shows what the directory checked, with the times and the place of the proof.
func TestARDTrust(t *testing.T) {
	w := newWorld(t)
	card := testCard("am_alice")
	header := append(withBearer(alice), wire.HeaderKeyProof, proof(testKey("am_alice"), "POST", "/v1/agents", testBase, wire.Now(), card))
	want(t, w.do("POST", "/v1/agents", string(card.JSON()), header...), 201, "")
	got := w.ard("POST", "/ard/search", `{"query":{"text":"alice","filter":{"trustManifest.attestations.type":["agentmesh-key","agentmesh-alive"]}}}`, 200)
	if len(got.Results) != 1 {
		t.Fatalf("found %+v", got)
	}
	trust := got.Results[0].TrustManifest
	if trust.Identity != testBase+"/agents/am_alice" || len(trust.Attestations) != 1 || trust.Attestations[0].Type != "agentmesh-key" || trust.Attestations[0].URI != testBase+"/agents/am_alice/record" {
		t.Errorf("trust = %+v", trust)
	}
	if _, ok := wire.ParseTime(got.Results[0].Metadata["key_proven_at"]); !ok {
		t.Errorf("metadata = %v", got.Results[0].Metadata)
	}
}

// TestARDPages: pages of a search and of a list have every agent once, and a token belongs to its query.
func TestARDPages(t *testing.T) {
	w := newWorld(t)
	for i := range 25 {
		w.register(alice, testCard(fmt.Sprintf("am_%02d", i), text("name", []string{"Weather", "Weather forecast", "Forecast"}[i%3])))
	}
	seen, token := map[string]bool{}, ""
	for range 4 {
		got := w.ard("POST", "/ard/search", `{"query":{"text":"weather forecast"},"pageToken":"`+token+`"}`, 200)
		for _, id := range names(got.Results) {
			if seen[id] {
				t.Errorf("%s comes twice", id)
			}
			seen[id] = true
		}
		if token = got.PageToken; token == "" {
			break
		}
		w.ard("POST", "/ard/search", `{"query":{"text":"weather"},"pageToken":"`+token+`"}`, 400)
		w.ard("GET", "/ard/agents?pageToken="+token, "", 400)
		want(t, w.do("GET", "/v1/agents?cursor="+token, ""), 400, "INVALID_MESSAGE")
	}
	if len(seen) != 25 || token != "" {
		t.Errorf("%d agents, token %q", len(seen), token)
	}
	page := w.ard("GET", "/ard/agents", "", 200)
	if len(page.Items) != 20 || page.Items[0].Metadata["agent_id"] != "am_00" || len(page.Items[0].RepresentativeQueries) < 2 {
		t.Fatalf("list = %+v", page)
	}
	if rest := w.ard("GET", "/ard/agents?pageSize=100&pageToken="+page.PageToken, "", 200); len(rest.Items) != 5 {
		t.Errorf("second page = %+v", rest)
	}
}

// TestARDList: the filter of a list is an expression.
func TestARDList(t *testing.T) {
	w := newARDWorld(t)
	for filter, want := range map[string][]string{
		"type = 'application/a2a-agent-card+json'":                    {"am_flight"},
		`capabilities="legal, travel" AND tags = 'mesh.schedule'`:     {"am_flight", "am_hotel"},
		"capabilities = 'travel,legal'":                               {"am_law", "am_flight", "am_hotel"}, // legal first
		"publisherId = 'directory.example' AND capabilities='fraud' ": {"am_liar"},
	} {
		if got := names(w.ard("GET", "/ard/agents?filter="+url.QueryEscape(filter), "", 200).Items); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", filter, got, want)
		}
	}
	for _, filter := range []string{"type", "type = x", "type = 'x", "type = 'x' OR tags = 'y'", "type='x' AND", "createdAfter = '2026'", "type='a' AND type='b'", strings.Repeat("x", 3000)} {
		if got := w.ard("GET", "/ard/agents?filter="+url.QueryEscape(filter), "", 400); got.ErrorCode != "INVALID_ARGUMENT" || got.Message == "" {
			t.Errorf("%s: %+v", filter, got)
		}
	}
	w.ard("GET", "/ard/agents?orderBy=displayName", "", 400)
	w.ard("GET", "/ard/agents?pageSize=101", "", 400)
}

// TestARDBadInput: bad requests get an error of ARD that repeats nothing of them.
func TestARDBadInput(t *testing.T) {
	w := newARDWorld(t)
	for name, tt := range map[string]struct {
		body   string
		header []string
		status int
	}{
		"10 MB":                   {body: `{"query":{"text":"` + strings.Repeat("x", 10<<20) + `"}}`, status: 413},
		"33 KiB":                  {body: `{"query":{"text":"x"},"pageToken":"` + strings.Repeat("x", 33<<10) + `"}`, status: 413},
		"deep":                    {body: `{"query":` + strings.Repeat(`{"filter":`, 1000) + strings.Repeat("}", 1001), status: 400},
		"no JSON":                 {body: `evil`, status: 400},
		"a list":                  {body: `[]`, status: 400},
		"no body":                 {status: 400},
		"duplicate keys":          {body: `{"query":{"text":"a","text":"b"}}`, status: 400},
		"no query":                {body: `{}`, status: 400},
		"no text":                 {body: `{"query":{"filter":{}}}`, status: 400},
		"unknown member":          {body: `{"query":{"text":"x"},"evil":1}`, status: 400},
		"unknown in query":        {body: `{"query":{"text":"x","evil":1}}`, status: 400},
		"unknown key":             {body: `{"query":{"text":"x","filter":{"evil":"x"}}}`, status: 400},
		"a text that is a number": {body: `{"query":{"text":1}}`, status: 400},
		"filter is a list":        {body: `{"query":{"text":"x","filter":[]}}`, status: 400},
		"a number in it":          {body: `{"query":{"text":"x","filter":{"tags":[1]}}}`, status: 400},
		"many values":             {body: `{"query":{"text":"x","filter":{"tags":[` + strings.Repeat(`"x",`, 16) + `"x"]}}}`, status: 400},
		"many products":           {body: `{"query":{"text":"one two three four five six","filter":{"tags":["a","b"],"capabilities":["a","b"]}}}`, status: 400},
		"a long text":             {body: `{"query":{"text":"` + strings.Repeat("x", 257) + `"}}`, status: 400},
		"federation":              {body: `{"query":{"text":"x"},"federation":"evil"}`, status: 400},
		"pageSize 0":              {body: `{"query":{"text":"x"},"pageSize":0}`, status: 400},
		"pageSize 101":            {body: `{"query":{"text":"x"},"pageSize":101}`, status: 400},
		"pageSize text":           {body: `{"query":{"text":"x"},"pageSize":"10"}`, status: 400},
		"pageSize 1.5":            {body: `{"query":{"text":"x"},"pageSize":1.5}`, status: 400},
		"foreign token":           {body: `{"query":{"text":"x"},"pageToken":"eyJwYWdlIjogMn0="}`, status: 400},
		"media type":              {body: `{"query":{"text":"x"}}`, header: []string{"Content-Type", "text/plain"}, status: 415},
		"encoding":                {body: `{"query":{"text":"x"}}`, header: []string{"Content-Encoding", "gzip"}, status: 415},
	} {
		rec := w.do("POST", "/ard/search", tt.body, tt.header...)
		var got ardAnswer
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || rec.Code != tt.status || got.ErrorCode != "INVALID_ARGUMENT" || got.Message == "" || strings.Contains(got.Message, "evil") {
			t.Errorf("%s = %d %s, want %d", name, rec.Code, rec.Body, tt.status)
		}
	}
	w.ard("POST", "/ard/explore", `{}`, 501)
	for path, status := range map[string]int{
		"urn%3Aair%3Adirectory.example%3Aagent%3Aam_law":       200,
		"urn:air:directory.example:agent:am_law":               200,
		"urn%3Aair%3Adirectory.example%3Aregistry%3Aagents":    200,
		"urn%3Aair%3Adirectory.example%3Aagent%3Aam_nobody":    404,
		"urn%3Aair%3Adirectory.example%3Aagent%3Ax%3Aam_law":   404,
		"urn%3Aair%3Aother.example%3Aagent%3Aam_law":           404,
		"urn%3Aair%3Ard-conformance.invalid%3Aprobe%3Anothing": 404,
		"not-a-valid-ard-urn":                                  400,
		"urn%253Aair%253Adirectory.example%253Aagent%253Aam_l": 400,
	} {
		got := w.do("GET", "/ard/agents/"+path, "")
		if got.Code != status || status == 404 && !strings.Contains(got.Body.String(), `"NOT_FOUND"`) {
			t.Errorf("%s = %d %s, want %d", path, got.Code, got.Body, status)
		}
	}
}

// TestARDIsLimited: the limits of addresses hold for these routes, with an error of ARD.
func TestARDIsLimited(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: 3}).Addresses() })
	var last *httptest.ResponseRecorder
	for range 4 {
		last = w.do("POST", "/ard/search", `{"query":{"text":"x"}}`, "Remote", "203.0.113.9:1")
	}
	if last.Code != 429 || !strings.Contains(last.Body.String(), `"RATE_LIMIT_EXCEEDED"`) || last.Header().Get("Retry-After") == "" {
		t.Errorf("the fourth request = %d %s", last.Code, last.Body)
	}
}

// TestARDRecordings replays recorded requests of clients.
func TestARDRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/ard/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			w := newARDWorld(t)
			for _, x := range apitest.Read(t, file) {
				x.Replay(t, w.edge.Handler())
			}
		})
	}
}
