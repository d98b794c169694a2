package directory

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func TestCaching(t *testing.T) { // AM-59
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		got := w.do("GET", "/v1/agents/am_a", "")
		tag, modified := got.Header().Get("ETag"), got.Header().Get("Last-Modified")
		if !strings.HasPrefix(tag, `"`) || modified != "Sat, 01 Jan 2000 00:00:00 GMT" {
			t.Errorf("ETag %q, Last-Modified %q", tag, modified)
		}
		if cache := got.Header().Get("Cache-Control"); cache != "public, max-age=300" {
			t.Errorf("Cache-Control = %q", cache)
		}
		for _, header := range [][]string{
			{"If-None-Match", tag}, {"If-None-Match", "W/" + tag}, {"If-None-Match", `"x", ` + tag}, {"If-None-Match", "*"},
			{"If-Modified-Since", modified},
			{"If-None-Match", tag, "If-Modified-Since", "Fri, 31 Dec 1999 00:00:00 GMT"},
		} {
			got := w.do("GET", "/v1/agents/am_a", "", header...)
			if got.Code != 304 || got.Body.Len() != 0 || got.Header().Get("ETag") != tag {
				t.Errorf("%v = %d %q", header, got.Code, got.Body)
			}
		}
		for _, header := range [][]string{
			{"If-None-Match", `"x"`}, {"If-None-Match", `"x"`, "If-Modified-Since", modified},
			{"If-Modified-Since", "Fri, 31 Dec 1999 00:00:00 GMT"}, {"If-Modified-Since", "bogus"},
		} {
			if got := w.do("GET", "/v1/agents/am_a", "", header...); got.Code != 200 || got.Body.Len() == 0 {
				t.Errorf("%v = %d %q", header, got.Code, got.Body)
			}
		}
		time.Sleep(2 * time.Second)
		want(t, w.do("PUT", "/v1/agents/am_a", string(testCard("am_a", text("name", "x")).JSON()), withBearer(alice)...), 200, "")
		got = w.do("GET", "/v1/agents/am_a", "", "If-None-Match", tag)
		if got.Code != 200 || got.Header().Get("ETag") == tag || got.Header().Get("Last-Modified") == modified {
			t.Errorf("after a change = %d %v", got.Code, got.Header())
		}
		list := w.do("GET", "/v1/agents", "")
		if list.Header().Get("Cache-Control") != "public, max-age=10" {
			t.Errorf("Cache-Control of a list = %q", list.Header().Get("Cache-Control"))
		}
		if got := w.do("GET", "/v1/agents", "", "If-None-Match", list.Header().Get("ETag")); got.Code != 304 {
			t.Errorf("the list again = %d, want 304", got.Code)
		}
		if got := w.do("GET", "/v1/agents/am_none", "").Header().Get("Cache-Control"); got != "no-store" {
			t.Errorf("Cache-Control of a 404 = %q", got)
		}
		if got := w.do("GET", "/v1/agents", "").Header().Get("Access-Control-Allow-Origin"); got != "*" {
			t.Errorf("Access-Control-Allow-Origin = %q", got)
		}
	})
}

func TestHead(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	for _, path := range []string{"/v1/agents/am_a", "/v1/agents", "/v1/agents/am_a/record", "/v1/agents/am_a/keys"} {
		get, head := w.do("GET", path, ""), w.do("HEAD", path, "")
		if head.Code != 200 || head.Body.Len() != 0 {
			t.Errorf("HEAD %s = %d %q", path, head.Code, head.Body)
		}
		for _, name := range []string{"ETag", "Content-Length", "Content-Type", "Cache-Control"} {
			if a, b := get.Header().Get(name), head.Header().Get(name); a != b || a == "" {
				t.Errorf("%s %s: GET %q, HEAD %q", path, name, a, b)
			}
		}
		if got := get.Header().Get("Content-Length"); got != fmt.Sprint(get.Body.Len()) {
			t.Errorf("%s: Content-Length %s for %d bytes", path, got, get.Body.Len())
		}
	}
	if got := w.do("HEAD", "/v1/agents/am_none", ""); got.Code != 404 {
		t.Errorf("HEAD of an unknown card = %d", got.Code)
	}
}

func TestRoutes(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	got := w.do("PATCH", "/v1/agents/am_a", "{}")
	want(t, got, 405, "INVALID_MESSAGE")
	if allow := got.Header().Get("Allow"); !strings.Contains(allow, "PUT") || !strings.Contains(allow, "DELETE") {
		t.Errorf("Allow = %q", allow)
	}
	want(t, w.do("GET", "/v1/nothing", ""), 404, "INVALID_MESSAGE")
	for _, id := range []string{"bogus", "am_", "am_a%2Fb", "am_%00", "am_" + strings.Repeat("x", 129), "am_a%20"} {
		want(t, w.do("GET", "/v1/agents/"+id, ""), 404, "AGENT_UNAVAILABLE")
	}
}

func TestFrontPage(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Site.Name = "<script>alert(1)</script>" })
	w.register(alice, testCard("am_a"))
	got := w.do("GET", "/", "", "Accept", "*/*")
	const doc = `{"name":"<script>alert(1)</script>","version":"v0","agents":1}`
	if got.Code != 200 || strings.TrimSpace(got.Body.String()) != doc {
		t.Errorf("GET / = %d %s, want %s", got.Code, got.Body, doc)
	}
	if links := got.Header().Values("Link"); !slices.Contains(links, `</openapi.yaml>; rel="service-desc"`) {
		t.Errorf("Link = %q", links)
	}
	got = w.do("GET", "/", "", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	page := got.Body.String()
	if !strings.HasPrefix(got.Header().Get("Content-Type"), "text/html") || !strings.Contains(page, "curl ") || !strings.Contains(page, testBase) {
		t.Errorf("the page: %v\n%s", got.Header(), page)
	}
	if strings.Contains(page, "<script") || strings.Contains(page, " on") && strings.Contains(page, "onload") {
		t.Errorf("the page has a script:\n%s", page)
	}
	csp := got.Header().Get("Content-Security-Policy")
	if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script-src") {
		t.Errorf("policy = %q", csp)
	}
	for _, part := range []string{`lang="en"`, "<title>", "<main ", "<h1>", `name="viewport"`, "One agent to talk to", `href="/join"`} {
		if !strings.Contains(page, part) {
			t.Errorf("the page lacks %s", part)
		}
	}
	if got := w.do("GET", "/", "", "Accept", "application/json, text/html"); !strings.HasPrefix(got.Header().Get("Content-Type"), "application/json") {
		t.Errorf("JSON before HTML gets %s", got.Header().Get("Content-Type"))
	}
}

func TestHealthCountsAgents(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	w.edge.Health("directory", w.reg.Health)
	if got := w.do("GET", "/health", "").Body.String(); !strings.Contains(got, `"directory":{"status":"ok","agents":1}`) {
		t.Errorf("health = %s", got)
	}
}

// TestRelayHealth: a full relay is reported as full, but the process stays ready.
func TestRelayHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		w.edge.Health("relay", w.reg.relay.Health)
		wantRelay := func(status int, want string) {
			t.Helper()
			if got := w.do("GET", "/health", "").Body.String(); !strings.Contains(got, `"relay":`+want) {
				t.Errorf("health = %s, want %s", got, want)
			}
			if got := w.do("GET", "/readyz", ""); got.Code != status {
				t.Errorf("readyz = %d %s, want %d", got.Code, got.Body, status)
			}
		}
		wantRelay(200, `{"status":"ok","connected":0}`)
		stop := w.agent(alice, func(mailbox.Item) (string, bool) { return "", true })
		synctest.Wait()
		wantRelay(200, `{"status":"ok","connected":1}`)
		counts, err := w.reg.relay.Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range mailbox.MaxAllMail { // one message per mailbox
			if err := counts.Admit(fmt.Sprint(i), mailbox.Mail{Box: wire.AgentID(fmt.Sprint("am_", i)), Created: wire.Now()}, wire.Now()); err != nil {
				t.Fatal(err)
			}
		}
		wantRelay(200, `{"status":"full","connected":1}`)
		want(t, w.do("POST", "/v1/relay", testMessage("1", "am_alice", "am_bob"), withBearer(alice)...), 503, "AGENT_UNAVAILABLE")
		stop()
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		wantRelay(503, `{"status":"unavailable"}`)
	})
}

// TestOtherClients replays requests of other implementations. A recording whose name starts with "local-" is of the
// local profile.
func TestOtherClients(t *testing.T) {
	files, err := filepath.Glob("testdata/reference/*.txtar")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d exchanges: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Local = strings.HasPrefix(filepath.Base(file), "local-") })
			for _, x := range apitest.Read(t, file) {
				x.Replay(t, w.edge.Handler())
			}
		})
	}
}

func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for i := range 32 {
		wg.Go(func() { // one id, two owners
			rec := w.do("POST", "/v1/agents", string(testCard("am_one").JSON()), withBearer([]string{alice, bob}[i%2])...)
			mu.Lock()
			defer mu.Unlock()
			got[rec.Code]++
		})
	}
	wg.Wait()
	if got[201] != 16 || got[409] != 16 {
		t.Errorf("32 registrations of one id by two owners = %v, want 16 of 201 and of 409", got)
	}
	for range 16 {
		wg.Go(func() { w.do("PUT", "/v1/agents/am_one", "", withBearer(alice)...) })
		wg.Go(func() { w.do("GET", "/v1/agents/am_one", "") })
		wg.Go(func() { w.do("GET", "/v1/agents?q=agent", "") })
	}
	wg.Wait()
	if ids, _ := w.list(""); len(ids) != 1 {
		t.Errorf("list = %v", ids)
	}
}

func TestAddressesPay(t *testing.T) { // AM-43, THREATS row 15
	w := newWorld(t)
	edge := httpapi.New(httpapi.Config{})
	reg := New(Config{Store: w.store, BaseURL: testBase, Addresses: edge.Addresses()})
	reg.Mount(edge.Echo())
	codes := map[int]int{}
	for range 130 {
		codes[send(apitest.Check(t, edge.Handler()), "GET", "/v1/agents?limit=100", "").Code]++
	}
	if codes[200] < 120 || codes[200] > 122 || codes[429] < 8 {
		t.Errorf("130 requests of one address = %v, want 120 answers", codes)
	}
	if got := send(edge.Handler(), "GET", "/v1/agents", "", "Remote", "198.51.100.9:1"); got.Code != 200 {
		t.Errorf("another address = %d", got.Code)
	}
}

func TestWorksInProcess(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	r := httptest.NewRequest("GET", "http://directory.example/v1/agents/am_a", nil)
	rec := httptest.NewRecorder()
	w.edge.Internal().ServeHTTP(rec, r)
	if rec.Code != http.StatusOK || rec.Body.String() != string(testCard("am_a").JSON()) {
		t.Errorf("in process = %d %s", rec.Code, rec.Body)
	}
}

func TestStoreFaults(t *testing.T) { // writes to a full store are 503, and reads work
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	broken := newWorldOver(t, fullStore{w.store})
	got := broken.do("POST", "/v1/agents", string(testCard("am_b").JSON()), withBearer(alice)...)
	want(t, got, 503, "AGENT_UNAVAILABLE")
	if got.Header().Get("Retry-After") == "" {
		t.Error("a 503 without Retry-After")
	}
	want(t, broken.do("PUT", "/v1/agents/am_a", "", withBearer(alice)...), 503, "AGENT_UNAVAILABLE")
	want(t, broken.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...), 503, "AGENT_UNAVAILABLE")
	want(t, broken.do("GET", "/v1/agents/am_a", ""), 200, "")
}

// TestListOnAFullDisk: a list with a second page works on a full disk. It needs the key of the cursors, which the
// directory now makes when it starts. It used to make the key in the first list, which failed if the disk was full by
// then.
func TestListOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, id := range []string{"am_a", "am_b"} {
			w.register(alice, testCard(id))
		}
		running, stop := context.WithCancel(t.Context())
		defer stop()
		go w.reg.Run(running)
		synctest.Wait()

		got := newWorldOver(t, fullStore{w.store}).do("GET", "/v1/agents?limit=1", "")
		want(t, got, 200, "")
		if !strings.Contains(got.Body.String(), `"cursor":`) {
			t.Errorf("the page has no cursor: %s", got.Body)
		}
	})
}

// TestUnknownAndForeignCostTheSame: a request for an unknown card and for a card of another owner read the store once
// each, so that 404 and 403 take similar time (AM-78, THREATS row 13).
func TestUnknownAndForeignCostTheSame(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	counted := &countingStore{Store: w.store}
	counted.cards = &countingCards{Cards: w.store.Cards()}
	spied := newWorldOver(t, counted)
	for _, method := range []string{"PUT", "DELETE"} {
		for id, status := range map[string]int{"am_a": 403, "am_none": 404} {
			counted.cards.calls = nil
			got := spied.do(method, "/v1/agents/"+id, "", withBearer(bob)...)
			if got.Code != status || fmt.Sprint(counted.cards.calls) != "[held]" {
				t.Errorf("%s %s = %d after %v, want %d after one look", method, id, got.Code, counted.cards.calls, status)
			}
		}
	}
}

type countingStore struct {
	store.Store
	cards *countingCards
}

func (c *countingStore) Cards() store.Cards { return c.cards }

type countingCards struct {
	store.Cards
	calls []string
}

func (c *countingCards) Held(ctx context.Context, id string, now time.Time) (store.Card, error) {
	c.calls = append(c.calls, "held")
	return c.Cards.Held(ctx, id, now)
}

func (c *countingCards) Get(ctx context.Context, id string, now time.Time) (store.Card, error) {
	c.calls = append(c.calls, "get")
	return c.Cards.Get(ctx, id, now)
}

func (c *countingCards) Put(ctx context.Context, put store.PutCard) (store.Card, error) {
	c.calls = append(c.calls, "put")
	return c.Cards.Put(ctx, put)
}

// fullStore is a store whose disk is full.
type fullStore struct{ store.Store }

func (f fullStore) Cards() store.Cards     { return fullCards{f.Store.Cards()} }
func (f fullStore) Records() store.Records { return fullRecords{f.Store.Records()} }

type fullRecords struct{ store.Records }

func (fullRecords) Apply(context.Context, []store.Change, time.Time) error {
	return store.ErrUnavailable
}

type fullCards struct{ store.Cards }

func (fullCards) Put(context.Context, store.PutCard) (store.Card, error) {
	return store.Card{}, store.ErrUnavailable
}

func (fullCards) Withdraw(context.Context, string, store.Rev, time.Time, []store.Change, time.Time) error {
	return store.ErrUnavailable
}

// TestWalkIsPaced: a client that reads the whole directory page by page gets 429 with Retry-After when its address has
// spent its budget. Afterwards it continues from the same cursor (AM-43, THREATS row 15).
func TestWalkIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget, agents = 5, 12 // pages of two: six requests
		w := newWorld(t)
		for i := range agents {
			w.register(alice, testCard(fmt.Sprintf("am_%02d", i)))
		}
		edge := httpapi.New(httpapi.Config{PublicURL: "https://directory.example", RequestsPerMinute: budget})
		New(Config{Store: w.store, BaseURL: testBase, Addresses: edge.Addresses()}).Mount(edge.Echo())
		h := apitest.Check(t, edge.Handler())
		want(t, send(edge.Handler(), "GET", "/v1/agents?limit=101", "", "Remote", "198.51.100.9:1"), 400, "INVALID_MESSAGE") // no larger steps

		var seen []string
		cursor, refused := "", 0
		for begun := time.Now(); ; {
			path := "/v1/agents?limit=2"
			if cursor != "" {
				path += "&cursor=" + cursor
			}
			got := send(h, "GET", path, "")
			if got.Code == http.StatusTooManyRequests {
				refused++
				wait, err := strconv.Atoi(got.Header().Get("Retry-After"))
				if err != nil || wait < 1 || len(seen) != 2*budget {
					t.Fatalf("429 after %d agents, Retry-After %q", len(seen), got.Header().Get("Retry-After"))
				}
				want(t, send(edge.Handler(), "GET", "/v1/agents", "", "Remote", "198.51.100.9:1"), 200, "") // others are served
				time.Sleep(time.Duration(wait) * time.Second)
				continue
			}
			ids, next := decodeList(t, got)
			seen = append(seen, ids...)
			if cursor = next; cursor == "" {
				if took := time.Since(begun); took < time.Minute/budget {
					t.Errorf("the walk took %v, want %v at least", took, time.Minute/budget)
				}
				break
			}
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != agents || refused != 1 {
			t.Errorf("saw %v and was refused %d times, want every agent and one refusal", seen, refused)
		}
	})
}
