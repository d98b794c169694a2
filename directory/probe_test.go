package directory

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/probe"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

var loopbackNets = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// withProbes gives a directory a client that may reach the test's own servers.
func withProbes(c *Config) {
	c.AllowPrivate = loopbackNets
	c.HTTP = client.NewHTTP(client.HTTPConfig{AllowPrivate: loopbackNets, Answer: 5 * time.Second})
}

// startEndpoint starts a server with handler h and returns its endpoint URL.
func startEndpoint(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/agentmesh"
}

// probeNow probes the endpoint of a card as the worker does, and returns the verification that is then shown.
func (w *world) probeNow(id string) wire.Verification {
	w.t.Helper()
	held, err := w.reg.cards.Get(w.t.Context(), id, wire.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	card, err := listing.ParseCard(held)
	if err != nil {
		w.t.Fatal(err)
	}
	w.reg.prober.Probe(w.t.Context(), probe.Target{ID: id, Host: listing.Host(card)})
	rec, err := w.reg.Record(w.t.Context(), wire.AgentID(id))
	if err != nil {
		w.t.Fatal(err)
	}
	return rec.Verification
}

func TestEndpointProof(t *testing.T) { // AM-63
	w := newWorld(t, withProbes)
	var served atomic.Pointer[[]byte]
	var agents sync.Map
	at := startEndpoint(t, func(rw http.ResponseWriter, r *http.Request) {
		agents.Store(r.UserAgent()+" "+r.Method, true)
		if data := served.Load(); data != nil {
			_, _ = rw.Write(*data)
			return
		}
		http.Error(rw, "no", http.StatusNotFound)
	})
	card := testCard("am_1", text("endpoint", at))
	w.register(alice, card)
	if got := w.probeNow("am_1"); got.Endpoint != nil || got.Alive != nil {
		t.Errorf("an endpoint that answers 404 counts as %+v", got)
	}
	w.wantChanges("", "registered am_1") // nothing was verified
	if ids, _ := w.list("verified=endpoint"); len(ids) != 0 {
		t.Errorf("verified=endpoint finds %v", ids)
	}
	serve := func(card wire.Value) { data := card.JSON(); served.Store(&data) }
	for name, wrong := range map[string]wire.Value{
		"another id":  testCard("am_2", text("endpoint", at), text("public_key", testKey("am_1").PublicText())),
		"another key": card.With("public_key", wire.Text(testKey("other").PublicText())),
		"no card":     wire.Obj(text("hello", "world")),
	} {
		serve(wrong)
		if got := w.probeNow("am_1"); got.Endpoint != nil || got.Alive != nil {
			t.Errorf("%s counts as %+v", name, got)
		}
	}
	serve(card.With("name", wire.Text("renamed meanwhile"))) // only id and key must match
	got := w.probeNow("am_1")
	if got.Endpoint == nil || got.Alive == nil || time.Since(*got.Endpoint) > time.Minute {
		t.Errorf("a right answer counts as %+v", got)
	}
	for _, query := range []string{"verified=endpoint", "verified=alive", "verified=endpoint&verified=alive&q=agent"} {
		if ids, _ := w.list(query); len(ids) != 1 {
			t.Errorf("?%s finds %v", query, ids)
		}
	}
	if shown := w.do("GET", "/v1/agents/am_1", "").Header().Get(wire.HeaderVerification); strings.Contains(shown, "endpoint=null") || strings.Contains(shown, "alive=null") {
		t.Errorf("header %q", shown)
	}
	w.wantChanges("", "verified am_1")

	served.Store(nil)
	for miss := 1; miss <= listing.MaxMisses; miss++ { // three misses clear the proof
		got := w.probeNow("am_1")
		if (got.Endpoint == nil) != (miss == listing.MaxMisses) || got.Alive == nil {
			t.Errorf("after %d misses: %+v", miss, got)
		}
		if ids, _ := w.list("verified=alive"); len(ids) != 0 {
			t.Errorf("after %d misses, verified=alive finds %v", miss, ids)
		}
	}
	w.wantChanges("", "verified am_1") // the last event, before the misses
	serve(card)
	if got := w.probeNow("am_1"); got.Endpoint == nil {
		t.Errorf("it came back: %+v", got)
	}
	// A new endpoint needs its own proof.
	w.register(alice, card.With("endpoint", wire.Text(at+"/other")))
	if rec, err := w.reg.Record(t.Context(), "am_1"); err != nil || rec.Verification.Endpoint != nil || rec.Verification.Alive != nil {
		t.Errorf("a new endpoint counts as %+v, %v", rec.Verification, err)
	}
	n := 0
	agents.Range(func(k, _ any) bool {
		n++
		if !strings.HasPrefix(k.(string), "agentmesh-directory (+"+testBase) || !strings.HasSuffix(k.(string), " GET") {
			t.Errorf("probed as %q", k)
		}
		return true
	})
	if n != 1 {
		t.Errorf("%d user agents, want a fixed one", n)
	}
}

// TestEndpointsThatAttack: an endless response, a response that never comes, and redirects into the private network do
// not harm the directory.
func TestEndpointsThatAttack(t *testing.T) { // THREATS 16 and 17
	w := newWorld(t, withProbes, func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{AllowPrivate: loopbackNets, Answer: 500 * time.Millisecond})
	})
	var sent, hits atomic.Int64
	victim := startEndpoint(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	for name, h := range map[string]http.HandlerFunc{
		"endless": func(rw http.ResponseWriter, r *http.Request) {
			chunk := make([]byte, 64<<10)
			for sent.Load() < 1<<30 {
				n, err := rw.Write(chunk)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		},
		"declared": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Length", fmt.Sprint(1<<30))
			_, _ = rw.Write([]byte("{"))
		},
		"silent":   func(rw http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"redirect": func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, victim, http.StatusFound) },
	} {
		id := "am_" + name
		w.register(alice, testCard(id, text("endpoint", startEndpoint(t, h))))
		start := time.Now()
		if got := w.probeNow(id); got.Endpoint != nil || got.Alive != nil {
			t.Errorf("%s: %+v", name, got)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	if n := sent.Load(); n > 16<<20 {
		t.Errorf("%d bytes of an endless answer were taken, want hardly more than a card", n)
	}
	if hits.Load() != 0 {
		t.Errorf("a redirect was followed")
	}
	// A name that resolves to a private address is refused when the connection is made.
	strict := client.NewHTTP(client.HTTPConfig{})
	card := wire.Card{ID: "am_1", Endpoint: "https://localhost:4443/x", PublicKey: testKey("am_1").PublicText()}
	if err := probe.Check(t.Context(), strict, client.Public, card, "test"); err == nil {
		t.Error("an endpoint on loopback was probed")
	}
}

// TestRun: a card is probed within a minute of its registration, even if a restart emptied the queue. Run returns after
// its work has ended.
func TestRun(t *testing.T) {
	w := newWorld(t, withProbes)
	hit := make(chan string, 10)
	var served []byte
	at := startEndpoint(t, func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(served)
		hit <- "am_new"
	})
	card := testCard("am_new", text("endpoint", at))
	served = card.JSON()
	w.register(alice, card)
	w = newWorldOver(t, w.store, withProbes) // as after a restart: the walk must find the card
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.reg.Run(ctx) })
	select {
	case <-hit:
	case <-time.After(50 * time.Second):
		t.Error("not probed within a minute")
	}
	for end := time.Now().Add(time.Minute); ; {
		if ids, _ := w.list("verified=alive"); len(ids) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the result was not stored")
		}
		<-time.After(20 * time.Millisecond)
	}
	cancel()
	running.Wait()
}

// slowStore is a store whose lists of cards wait for release, whatever their context.
type slowStore struct {
	store.Store
	release chan struct{}
}

func (s slowStore) Cards() store.Cards { return slowCards{s.Store.Cards(), s.release} }

type slowCards struct {
	store.Cards
	release chan struct{}
}

func (c slowCards) List(ctx context.Context, q store.CardQuery) (store.CardPage, error) {
	<-c.release
	return c.Cards.List(ctx, q)
}

// TestRunWaitsForProbes: Run returns only after the work of the probes has ended. Otherwise the lease is released, and
// the store closes, while that work still uses the store.
func TestRunWaitsForProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := newWorldOver(t, slowStore{newWorld(t).store, release}, withProbes)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.reg.Run(ctx)
		}()
		time.Sleep(time.Second)
		cancel()
		time.Sleep(time.Minute)
		select {
		case <-ended:
			t.Error("Run returned before its work")
		default:
		}
		close(release)
		<-ended
	})
}

// TestKeyInDoubt: for 72 hours a key that replaced another without its proof is not found as proven.
func TestKeyInDoubt(t *testing.T) { // AM-60
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		put := func(key string, status int) {
			card := testCard("am_1", text("public_key", testKey(key).PublicText()))
			stamp := proof(testKey(key), "PUT", "/v1/agents/am_1", testBase, time.Now(), card)
			want(t, w.do("PUT", "/v1/agents/am_1", string(card.JSON()), append(withBearer(alice), wire.HeaderKeyProof, stamp)...), status, "")
		}
		proven := func() bool { ids, _ := w.list("verified=key"); return len(ids) == 1 }
		w.register(alice, testCard("am_1"))
		if proven() {
			t.Error("a key without a proof is found as proven")
		}
		put("am_1", 200)
		if !proven() {
			t.Error("a proven key is not found")
		}
		put("other", 200)
		if proven() {
			t.Error("a replaced key is found as proven")
		}
		time.Sleep(listing.Distrust)
		put("other", 200)
		if !proven() {
			t.Error("after 72 hours the key is not found")
		}
	})
}

// TestProbeAfterDoubt: once a replaced key counts as proven again, the card is probed. The probe writes the card, and
// so lets searches for proven keys find it.
func TestProbeAfterDoubt(t *testing.T) { // AM-60
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, withProbes)
		w.register(alice, testCard("am_1"))
		held := w.card("am_1")
		queued := func() int {
			w.reg.prober.AddIfDue(held, wire.Now())
			ready, _ := w.reg.prober.Queue().Next(time.Now(), 2)
			return len(ready)
		}
		if queued() != 1 {
			t.Error("an endpoint that was never probed is not queued")
		}
		m := listing.Meta{Head: listing.Head{Proven: wire.Now(), Replaced: wire.Now()}}
		time.Sleep(listing.Distrust - time.Hour)
		m.AddProbe(true, wire.Now())
		held.Meta = m.Encode()
		if queued() != 0 {
			t.Error("an endpoint that was just probed is queued")
		}
		time.Sleep(time.Hour)
		if queued() != 1 {
			t.Error("after 72 hours the endpoint is not queued")
		}
		m.AddProbe(true, wire.Now())
		held.Meta = m.Encode()
		time.Sleep(time.Hour)
		if queued() != 0 {
			t.Error("after the probe the endpoint is queued again")
		}
	})
}
