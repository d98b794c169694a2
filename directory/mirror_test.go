package directory

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

func readOnly(c *Config) { c.ReadOnly, c.BaseURL = true, "https://mirror.example/v1" }

// newSource returns the directory of w as a mirror reaches it; lie may change its responses.
func newSource(w *world, lie func([]byte) []byte) *client.Directory {
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		w.edge.Handler().ServeHTTP(rec, r)
		rw.WriteHeader(rec.Code)
		body := rec.Body.Bytes()
		if lie != nil {
			body = lie(body)
		}
		_, _ = rw.Write(body)
	})
	return client.NewDirectory(testBase, nil, client.InProcess(h))
}

// follow reads the feed to its end.
func (w *world) follow(source *client.Directory) {
	w.t.Helper()
	place := func() []byte {
		rec, _ := w.reg.recs.Get(w.t.Context(), recordNS, mirrorRecord+source.StoredName(), wire.Now()) // without a record the position is empty
		return rec.Body
	}
	for range 100 {
		before := place()
		if _, err := w.reg.followOnce(w.t.Context(), source, 0); err != nil {
			w.t.Fatal(err)
		}
		if bytes.Equal(before, place()) {
			return
		}
	}
	w.t.Fatal("the feed has no end")
}

func TestMirror(t *testing.T) {
	w, m := newWorld(t), newWorld(t, readOnly)
	for i := range 230 {
		w.register(alice, testCard(fmt.Sprintf("am_%03d", i)))
	}
	card := testCard("am_proven")
	stamp := proof(testKey("am_proven"), "POST", "/v1/agents", testBase, time.Now(), card)
	want(t, w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(alice), wire.HeaderKeyProof, stamp)...), 201, "")
	source := newSource(w, nil)
	m.follow(source)
	if n, err := m.reg.cards.Count(t.Context(), wire.Now()); err != nil || n != 231 {
		t.Fatalf("the mirror has %d cards, %v", n, err)
	}
	same := func(id string) {
		t.Helper()
		a, b := w.do("GET", "/v1/agents/"+id, ""), m.do("GET", "/v1/agents/"+id, "")
		if a.Code != b.Code || a.Body.String() != b.Body.String() {
			t.Errorf("%s is %d %s at the source and %d %s at the mirror", id, a.Code, a.Body, b.Code, b.Body)
		}
	}
	same("am_007")
	same("am_proven")
	record := func(w *world, id wire.AgentID) wire.CardRecord {
		rec, err := w.reg.Record(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	if a, b := record(w, "am_007"), record(m, "am_007"); !a.ExpiresAt.Equal(b.ExpiresAt) || !a.RegisteredAt.Equal(b.RegisteredAt) {
		t.Errorf("times %v and %v", a, b)
	}
	if got := record(m, "am_proven"); got.Verification.Key == nil || got.KeyProof != stamp {
		t.Errorf("a proof that verifies is shown as %+v", got.Verification)
	}
	if ids, _ := m.list("q=am_007"); len(ids) != 1 {
		t.Errorf("the mirror finds %v", ids)
	}

	// Changes of the source arrive here, with the reasons of removals.
	w.register(alice, testCard("am_001", text("name", "Renamed")))
	want(t, w.do("DELETE", "/v1/agents/am_002", "", withBearer(alice)...), 204, "")
	if err := w.reg.Remove(t.Context(), "am_003", "spam", "cli"); err != nil {
		t.Fatal(err)
	}
	_, place := m.changes("", 100)
	m.follow(source)
	same("am_001")
	same("am_002")
	m.wantChanges(place, "renewed am_001", "withdrawn am_002", "removed am_003: spam")

	// Nobody writes here.
	for method, path := range map[string]string{"POST": "/v1/agents", "PUT": "/v1/agents/am_007", "DELETE": "/v1/agents/am_007"} {
		want(t, m.do(method, path, string(testCard("am_007").JSON()), withBearer(alice)...), 403, "UNAUTHORIZED")
	}

	// A source that was set up again does not know our position: the mirror drops its cards and reads the whole feed.
	other := newWorldWithCards(t, 3)
	m.follow(newSource(other, nil))
	m.follow(newSource(other, nil))
	if ids, _ := m.list(""); !cmp.Equal(ids, []string{"am_000", "am_001", "am_002"}) {
		t.Errorf("after another source: %v", ids)
	}
	// After a change of source nothing of the first one is left.
	third := newWorld(t)
	third.register(alice, testCard("am_third"))
	elsewhere := newSource(third, nil)
	elsewhere.Base = "https://third.example/v1"
	m.follow(elsewhere)
	if ids, _ := m.list(""); len(ids) != 1 || ids[0] != "am_third" {
		t.Errorf("after a change of source: %v", ids)
	}
}

// TestMirrorOfBadProxy: a proxy that refuses the request takes no card from the mirror.
func TestMirrorOfBadProxy(t *testing.T) {
	m := newWorld(t, readOnly)
	m.follow(newSource(newWorldWithCards(t, 2), nil))
	proxy := client.NewDirectory(testBase, nil, client.InProcess(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "bad request", http.StatusBadRequest)
	})))
	if _, err := m.reg.followOnce(t.Context(), proxy, 0); err == nil {
		t.Error("the mirror followed a proxy that refuses")
	}
	if ids, _ := m.list(""); len(ids) != 2 {
		t.Errorf("the mirror lists %v", ids)
	}
}

// TestMirrorChecksItself: a mirror does not take over false claims of its source (THREATS 10).
func TestMirrorChecksItself(t *testing.T) {
	card := testCard("am_1")
	key, other := testKey("am_1").PublicText(), testKey("other").PublicText()
	quoted := func(s string) string { return strings.Trim(string(wire.Text(s).JSON()), `"`) }
	for name, tt := range map[string]struct {
		lie    func([]byte) []byte
		listed bool
		proven bool
	}{
		"truth":          {nil, true, true},
		"another key":    {swap(quoted(key), quoted(other)), true, false},
		"another text":   {swap("Agent am_1", "Agent 007"), true, false},
		"a claim":        {func(b []byte) []byte { return swap(`"key_proof":"t=`, `"key_proof":"t=x`)(b) }, true, false},
		"a bad key":      {swap(quoted(key), "ed25519:AAAA"), false, false},
		"a bad endpoint": {swap("https://am-1.example/agentmesh", "http://169.254.169.254/"), false, false},
		"no name":        {swap(`"name":"Agent am_1"`, `"name":""`), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := newWorld(t), newWorld(t, readOnly)
			stamp := proof(testKey("am_1"), "POST", "/v1/agents", testBase, time.Now(), card)
			want(t, w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(alice), wire.HeaderKeyProof, stamp)...), 201, "")
			w.register(alice, testCard("am_2"))
			m.follow(newSource(w, tt.lie))
			ids, _ := m.list("")
			wantIDs := []string{"am_2"}
			if tt.listed {
				wantIDs = []string{"am_1", "am_2"}
			}
			if !cmp.Equal(ids, wantIDs) {
				t.Errorf("the mirror lists %v, want %v", ids, wantIDs)
			}
			if ids, _ := m.list("verified=key"); (len(ids) == 1) != tt.proven {
				t.Errorf("proven are %v", ids)
			}
		})
	}
	// A listed card that the source makes unacceptable is removed.
	w, m := newWorldWithCards(t, 1), newWorld(t, readOnly)
	m.follow(newSource(w, nil))
	w.register(alice, testCard("am_000", text("description", "changed")))
	m.follow(newSource(w, swap("https://am-000.example/agentmesh", "http://10.0.0.1/")))
	if ids, _ := m.list(""); len(ids) != 0 {
		t.Errorf("the mirror lists %v", ids)
	}
	// A change with another agent's card fails the page.
	source := newSource(w, swap(`"agent_id":"am_000","record"`, `"agent_id":"am_else","record"`))
	if _, err := newWorld(t, readOnly).reg.followOnce(t.Context(), source, 0); err == nil {
		t.Error("a line with another agent's card was taken")
	}
}

func swap(old, with string) func([]byte) []byte {
	return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(with)) }
}

// TestFollow: the worker follows, waits after a failure of the source, and ends with its context.
func TestFollow(t *testing.T) {
	w, m := newWorldWithCards(t, 1), newWorld(t, readOnly)
	var mu sync.Mutex
	failures := 1
	inner := newSource(w, nil)
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if failures > 0 {
			failures--
			http.Error(rw, "no", http.StatusBadGateway)
			return
		}
		w.edge.Handler().ServeHTTP(rw, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.reg.Follow(ctx, client.NewDirectory(inner.Base, nil, client.InProcess(h))) })
	for end := time.Now().Add(30 * time.Second); ; {
		if ids, _ := m.list(""); len(ids) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the mirror stays empty")
		}
		<-time.After(10 * time.Millisecond)
	}
	cancel()
	running.Wait()
}

// TestMirrorIsPaced: the mirror pauses between requests to a source that does not wait, or that moves the position
// without a change.
func TestMirrorIsPaced(t *testing.T) {
	for name, next := range map[string]func(int64) string{
		"the same place": func(int64) string { return "same" },
		"another place":  func(n int64) string { return fmt.Sprint("place-", n) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				source := client.NewDirectory(testBase, nil, client.InProcess(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
					fmt.Fprintf(rw, `{"changes":[],"next":%q,"more":false}`, next(asked.Add(1)))
				})))
				m := newWorld(t, readOnly)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				m.reg.Follow(ctx, source)
				if n := asked.Load(); n < 5 || n > 13 {
					t.Errorf("asked %d times in a minute", n)
				}
			})
		})
	}
}
