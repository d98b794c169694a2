package moltspeak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const mine = "a-bearer-of-my-choosing"

// counted is a directory of many cards that counts requests for a page.
type counted struct {
	cards []wire.Value
	pages atomic.Int64
}

func (d *counted) Search(_ context.Context, q client.Query) (wire.Listing, error) {
	d.pages.Add(1)
	from := 0
	fmt.Sscan(q.Cursor, &from)
	to := min(from+q.Limit, len(d.cards))
	l := wire.Listing{Agents: d.cards[from:to]}
	if to < len(d.cards) {
		l.Cursor = fmt.Sprint(to)
	}
	return l, nil
}

func (d *counted) Record(context.Context, wire.AgentID) (wire.CardRecord, error) {
	return wire.CardRecord{}, client.ErrUnknownAgent
}

// TestRegistryUnderLoad: requests of strangers cause no reads. The directory and the store are read once, however many
// strangers ask and however many agents are registered.
func TestRegistryUnderLoad(t *testing.T) {
	d := &counted{}
	for i := range 1000 {
		d.cards = append(d.cards, mustTree(t, fmt.Sprintf(`{"agent_id":"am_%d","name":"X","description":"card %d","metadata":{"moltspeak":"https://x.example/","moltspeak_agent":"a%d@cards"}}`, i, i, i)))
	}
	r, _ := newTestRig(t, func(c *Config) { c.Registry, c.Local, c.Directories = true, true, []Directory{d} })
	now := time.Now().UTC()
	var changes []store.Change
	for i := range 2000 {
		k := registration{Entry: Entry{ID: fmt.Sprintf("b%d@own", i), AgentName: fmt.Sprint("b", i), Org: "own", PublicKey: "k", Status: "active", Capabilities: []string{"x"}, TrustScore: 0.5, LastSeenAt: now}}
		changes = append(changes, store.Change{Record: store.Record{NS: nsRegistry, Key: k.ID, Body: encode(k), Terms: []string{"agent"}, Expires: k.until()}})
		if len(changes) == 500 {
			if err := r.b.records.Apply(t.Context(), changes, now); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	reads := &countedRecords{Records: r.b.records}
	r.b.registry.cache.records = reads
	c := registryClient{t, r.serve().URL}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for _, path := range []string{"agents?limit=100&offset=2950", "stats", "search?q=card+99", "search?org=own&limit=50", "search?capability=none", "agents/a7@cards"} {
				if status, body := c.do("GET", "/api/v1/"+path, "", ""); status != http.StatusOK {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
		})
	}
	all.Wait()
	if pages, lists := d.pages.Load(), reads.lists.Load(); pages > 10 || lists > 5 {
		t.Errorf("48 requests read %d pages of the directory and %d of the store, want one walk over each", pages, lists)
	}
	_, stats := c.do("GET", "/api/v1/stats", "", "")
	_, last := c.do("GET", "/api/v1/agents?limit=100&offset=2950", "", "")
	var page struct {
		Agents     []Entry
		Pagination struct {
			Total int
			More  bool `json:"has_more"`
		}
	}
	if err := json.Unmarshal([]byte(last), &page); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stats, `"total_agents":3000,"total_orgs":2`) || len(page.Agents) != 50 || page.Pagination.Total != 3000 || page.Pagination.More {
		t.Errorf("stats %s, last page %d of %d", stats, len(page.Agents), page.Pagination.Total)
	}
	d.cards = d.cards[:1]
	r.b.registry.cache.mu.Lock()
	r.b.registry.cache.read = time.Now().Add(-cardsFor)
	r.b.registry.cache.mu.Unlock()
	if _, stats := c.do("GET", "/api/v1/stats", "", ""); !strings.Contains(stats, `"total_agents":2001`) {
		t.Errorf("a minute later: %s", stats)
	}
}

// impatientDirectory answers only if its caller still waits.
type impatientDirectory struct{ *counted }

func (d impatientDirectory) Search(ctx context.Context, q client.Query) (wire.Listing, error) {
	if ctx.Err() != nil {
		return wire.Listing{}, ctx.Err()
	}
	return d.counted.Search(ctx, q)
}

// TestCardsAreReadForAll: a stranger that closes its connection does not stop the cards from being read, which would
// keep the old ones for another minute.
func TestCardsAreReadForAll(t *testing.T) {
	d := impatientDirectory{&counted{}}
	r, _ := newTestRig(t, func(c *Config) { c.Registry, c.Directories = true, []Directory{d} })
	cache := r.b.registry.cache
	if list, err := cache.list(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("%d entries, %v", len(list), err)
	}
	d.cards = append(d.cards, mustTree(t, listedCard))
	cache.read = time.Now().Add(-cardsFor)
	gone, leave := context.WithCancel(t.Context())
	leave()
	if list, err := cache.list(gone); err != nil || len(list) != 1 {
		t.Errorf("a minute later: %d entries, %v, want the new card", len(list), err)
	}
}

type countedRecords struct {
	store.Records
	lists atomic.Int64
}

func (r *countedRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	r.lists.Add(1)
	return r.Records.List(ctx, ns, term, after, limit, now)
}

func register(name, endpoint string) string {
	a, _ := message.ParseName(name)
	return fmt.Sprintf(`{"agent_name":"%s","org":"%s","public_key":"%s","endpoint":"%s"}`, a.Agent, a.Org, self(name).Key, endpoint)
}

// TestRegistrationsAreBounded: an address can register only a few agents per hour, the registry has a maximum, and a
// name becomes free if nobody keeps it alive.
func TestRegistrationsAreBounded(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) {
		c.Registry = true
		c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: 10_000}).Addresses()
	})
	c := registryClient{t, r.serve().URL}
	for i := range registrationsPerHour {
		if status, body := c.do("POST", "/api/v1/agents", mine, register(fmt.Sprintf("a%d@x", i), "https://x.example")); status != http.StatusCreated {
			t.Fatalf("%d: %d %s", i, status, body)
		}
	}
	if status, body := c.do("POST", "/api/v1/agents", mine, register("more@x", "https://x.example")); status != http.StatusTooManyRequests {
		t.Errorf("one too many: %d %s", status, body)
	}
	r, _ = newTestRig(t, func(c *Config) { c.Registry, c.Local = true, true })
	now := time.Now().UTC()
	var changes []store.Change
	for i := range maxRegistered {
		k := registration{Entry: Entry{ID: fmt.Sprintf("b%d@own", i), AgentName: fmt.Sprint("b", i), Org: "own", PublicKey: "k", Status: "active", Capabilities: []string{}, TrustScore: 0.5, LastSeenAt: now.Add(time.Minute - keepClaimed)}}
		changes = append(changes, store.Change{Record: store.Record{NS: nsRegistry, Key: k.ID, Body: encode(k), Terms: []string{"agent"}, Expires: k.until()}})
		if len(changes) == 1000 {
			if err := r.b.records.Apply(t.Context(), changes, now); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	c = registryClient{t, r.serve().URL}
	if status, body := c.do("POST", "/api/v1/agents", mine, register("more@x", "https://x.example")); status != http.StatusTooManyRequests {
		t.Errorf("in a full registry: %d %s", status, body)
	}
	more := registration{Entry: Entry{ID: "more@x", LastSeenAt: now}}
	if err := r.b.registry.save(t.Context(), more, now.Add(2*time.Minute)); err != nil {
		t.Errorf("when nobody kept the others alive: %v", err)
	}
}

// TestRegistryProofs: the trust score grows with each proof: of the key by a signed message, of the endpoint by an
// answer. A new endpoint starts without a proof (MS-55).
func TestRegistryProofs(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Registry, c.Local = true, true })
	c := registryClient{t, r.serve().URL}
	score := func(name string) float64 {
		t.Helper()
		var got struct{ Agent Entry }
		_, body := c.do("GET", "/api/v1/agents/"+name, "", "")
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		return got.Agent.TrustScore
	}
	core := false
	prove := func(name string, now time.Time) error { return r.b.registry.proveEndpoint(t.Context(), name, now) }
	signer := cat
	r.reply = func(peer string, got wire.Value) []byte {
		challenge, _ := got.Get("p")
		d := r.draft(peer, message.OpVerifyResponse, `{"challenge":"`+challenge.GetStr("challenge")+`"}`)
		d.Re = got.GetStr("id")
		if core {
			d = d.ToCore()
		}
		return r.sign(signer, d)
	}
	for _, name := range []string{cat, dog, "bird@air"} {
		c.do("POST", "/api/v1/agents", mine, register(name, r.server.URL+"/"+name+"/message"))
	}
	if got := score(cat); got != 0.5 {
		t.Errorf("registered: %v", got)
	}
	now := time.Now()
	if err := prove(cat, now); err != nil || score(cat) != 0.9 {
		t.Errorf("its endpoint answered: %v, %v", score(cat), err)
	}
	if err := prove(dog, now); err == nil || score(dog) != 0.5 {
		t.Errorf("another signed for it: %v, %v", score(dog), err)
	}
	if before := len(r.queue(dog)); prove(dog, now.Add(time.Minute)) != nil || len(r.queue(dog)) != before {
		t.Error("an endpoint is asked again within the hour")
	}
	r.say(dog, r.draft(dog, message.OpPing, `{"nonce":1}`))
	if got := score(dog); got != 0.7 {
		t.Errorf("it signed a message: %v", got)
	}
	forged := r.draft("bird@air", message.OpPing, `{"nonce":1}`)
	r.sendRaw(dog, r.sign(dog, forged))
	if got := score("bird@air"); got != 0.5 {
		t.Errorf("a forged message proved a key: %v", got)
	}
	c.do("PUT", "/api/v1/agents/"+cat, mine, `{"endpoint":"`+r.server.URL+`/elsewhere"}`)
	if got := score(cat); got != 0.7 {
		t.Errorf("another endpoint: %v", got)
	}
	c.do("PUT", "/api/v1/agents/"+cat, mine, `{"endpoint":"`+r.server.URL+`/`+cat+`/message"}`)
	core = true // the agent answers as one that knows only the core operations
	if err := prove(cat, now); err != nil || score(cat) != 0.9 {
		t.Errorf("proven again: %v, %v", score(cat), err)
	}
	r.down.Store(true)
	if err := prove(cat, now.Add(proveAgain)); err == nil || score(cat) != 0.7 {
		t.Errorf("an endpoint that is gone: %v, %v", score(cat), err)
	}
}

// TestProofsAreShared: an agent that changes its entry all the time takes one place of the queue, and gets another one
// when the first is free.
func TestProofsAreShared(t *testing.T) {
	p := &proofs{queue: make(chan string, 5)}
	for range 2 {
		for range cap(p.queue) {
			p.ask(cat)
		}
		p.ask(dog)
		for _, want := range []string{cat, dog} {
			select {
			case got := <-p.queue:
				p.waiting.Delete(got)
				if got != want {
					t.Errorf("next is %s, want %s", got, want)
				}
			default:
				t.Fatalf("%s is not in the queue", want)
			}
		}
		if n := len(p.queue); n != 0 {
			t.Errorf("%d more places are taken", n)
		}
	}
}

// TestRegistryProvesByItself: the registry challenges endpoints by itself and stops with the bridge.
func TestRegistryProvesByItself(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Registry, c.Local = true, true })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.b.Run(ctx) }()
	c := registryClient{t, r.serve().URL}
	c.do("POST", "/api/v1/agents", mine, register(cat, r.server.URL+"/"+cat+"/message"))
	if m := r.receive(cat); m.Op != message.OpVerify {
		t.Errorf("the endpoint got %s", m.Op)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestRegistrationsAreBoundedInBytes: the total size of registrations is bounded. Large entries fill the registry
// before many exist, existing entries stay alive, and a deleted entry leaves only its name.
func TestRegistrationsAreBoundedInBytes(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Registry, c.Local = true, true })
	large := strings.Repeat("x", 4096)
	now := time.Now().UTC()
	var changes []store.Change
	for i := range maxRegistryBytes/(8<<10) + 10 {
		var caps []string
		for len(caps) < 16 {
			caps = append(caps, large[:240])
		}
		k := registration{Entry: Entry{ID: fmt.Sprintf("b%d@own", i), AgentName: fmt.Sprint("b", i), Org: "own", PublicKey: "k", Status: "active", Description: large, Capabilities: caps, TrustScore: 0.5, LastSeenAt: now}}
		changes = append(changes, store.Change{Record: store.Record{NS: nsRegistry, Key: k.ID, Body: encode(k), Terms: []string{"agent"}, Expires: k.until()}})
		if len(changes) == 500 {
			if err := r.b.records.Apply(t.Context(), changes, now); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	if err := r.b.records.Apply(t.Context(), changes, now); err != nil {
		t.Fatal(err)
	}
	c := registryClient{t, r.serve().URL}
	if status, body := c.do("POST", "/api/v1/agents", mine, register("more@x", "https://x.example")); status != http.StatusTooManyRequests {
		t.Errorf("in a registry that is full of bytes: %d %s", status, body)
	}
	var k registration
	rev, ok, err := store.ReadRecord(t.Context(), r.b.records, nsRegistry, "b1@own", &k, now)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	k.rev, k.LastSeenAt = rev, now.Add(time.Second)
	if err := r.b.registry.save(t.Context(), k, now); err != nil {
		t.Errorf("one that is there is not kept alive: %v", err)
	}
	k.rev++
	k.Description += "!"
	if err := r.b.registry.save(t.Context(), k, now); !errors.Is(err, store.ErrQuota) {
		t.Errorf("one that is there grows: %v", err)
	}
}

// TestRegistryFollowsItsEntries: a heartbeat keeps the order and shows at once; a deleted entry leaves only its name.
func TestRegistryFollowsItsEntries(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Registry, c.Local = true, true })
	c := registryClient{t, r.serve().URL}
	for _, name := range []string{"c@x", "a@x", "b@x"} {
		c.do("POST", "/api/v1/agents", mine, strings.Replace(register(name, "https://x.example"), "{", `{"description":"long words",`, 1))
	}
	c.do("PUT", "/api/v1/agents/b@x", mine, `{"description":"other words"}`)
	var list struct{ Agents []Entry }
	if _, body := c.do("GET", "/api/v1/agents", "", ""); json.Unmarshal([]byte(body), &list) != nil || len(list.Agents) != 3 || list.Agents[1].ID != "b@x" || list.Agents[1].Description != "other words" {
		t.Errorf("listed: %+v", list.Agents)
	}
	if _, body := c.do("GET", "/api/v1/search?q=other", "", ""); !strings.Contains(body, `"count":1`) {
		t.Errorf("searched: %s", body)
	}
	c.do("DELETE", "/api/v1/agents/a@x", mine, "")
	rec, err := r.b.records.Get(t.Context(), nsRegistry, "a@x", time.Now())
	if err != nil || strings.Contains(string(rec.Body), "long words") || strings.Contains(string(rec.Body), "x.example") {
		t.Errorf("of a deleted entry %s is left, %v", rec.Body, err)
	}
	if _, body := c.do("GET", "/api/v1/stats", "", ""); !strings.Contains(body, `"total_agents":2`) {
		t.Errorf("after one was deleted: %s", body)
	}
}
