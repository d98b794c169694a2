package registry

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

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestRegistryUnderLoad: requests of strangers cause no reads. The directory and the store are read once, however many
// strangers ask and however many agents are registered.
func TestRegistryUnderLoad(t *testing.T) {
	d := &cards{}
	for i := range 1000 {
		d.list = append(d.list, mustTree(t, fmt.Sprintf(`{"agent_id":"am_%d","name":"X","description":"card %d","metadata":{"moltspeak":"https://x.example/","moltspeak_agent":"a%d@cards"}}`, i, i, i)))
	}
	s, c := newTestServer(t, func(c *Config) { c.Directory = d })
	now := time.Now().UTC()
	var changes []store.Change
	for i := range 2000 {
		k := registration{Entry: Entry{ID: fmt.Sprintf("b%d@own", i), AgentName: fmt.Sprint("b", i), Org: "own", PublicKey: "k", Status: "active", Capabilities: []string{"x"}, TrustScore: 0.5, LastSeenAt: now}}
		changes = append(changes, k.change())
		if len(changes) == 500 {
			if err := s.cfg.Records.Apply(t.Context(), changes, now); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	reads := &countedRecords{Records: s.cfg.Records}
	s.cache.records = reads
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
	d.list = d.list[:1]
	s.cache.mu.Lock()
	s.cache.readAt = time.Now().Add(-cardsFor)
	s.cache.mu.Unlock()
	if _, stats := c.do("GET", "/api/v1/stats", "", ""); !strings.Contains(stats, `"total_agents":2001`) {
		t.Errorf("a minute later: %s", stats)
	}
}

// impatientDirectory answers only if its caller still waits.
type impatientDirectory struct{ *cards }

func (d impatientDirectory) Search(ctx context.Context, q client.Query) (wire.Listing, error) {
	if ctx.Err() != nil {
		return wire.Listing{}, ctx.Err()
	}
	return d.cards.Search(ctx, q)
}

// TestCardsAreReadForAll: a stranger that closes its connection does not stop the cards from being read, which would
// keep the old ones for another minute.
func TestCardsAreReadForAll(t *testing.T) {
	d := impatientDirectory{&cards{}}
	s, _ := newTestServer(t, func(c *Config) { c.Directory = d })
	cache := s.cache
	if list, err := cache.list(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("%d entries, %v", len(list), err)
	}
	d.list = append(d.list, mustTree(t, listedCard))
	cache.readAt = time.Now().Add(-cardsFor)
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

// TestRegistrationsAreBounded: an address can register only a few agents per hour, the registry has a maximum, and a
// name becomes free if nobody keeps it alive.
func TestRegistrationsAreBounded(t *testing.T) {
	_, c := newTestServer(t, func(c *Config) {
		c.Local, c.Addresses = false, httpapi.New(httpapi.Config{RequestsPerMinute: 10_000}).Addresses()
	})
	for i := range registrationsPerHour {
		if status, body := c.do("POST", "/api/v1/agents", mine, register(fmt.Sprintf("a%d@x", i), "https://x.example")); status != http.StatusCreated {
			t.Fatalf("%d: %d %s", i, status, body)
		}
	}
	if status, body := c.do("POST", "/api/v1/agents", mine, register("more@x", "https://x.example")); status != http.StatusTooManyRequests {
		t.Errorf("one too many: %d %s", status, body)
	}
	s, c := newTestServer(t, nil)
	now := time.Now().UTC()
	var changes []store.Change
	for i := range maxRegistered {
		k := registration{Entry: Entry{ID: fmt.Sprintf("b%d@own", i), AgentName: fmt.Sprint("b", i), Org: "own", PublicKey: "k", Status: "active", Capabilities: []string{}, TrustScore: 0.5, LastSeenAt: now.Add(time.Minute - keepClaimed)}}
		changes = append(changes, k.change())
		if len(changes) == 1000 {
			if err := s.cfg.Records.Apply(t.Context(), changes, now); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	if status, body := c.do("POST", "/api/v1/agents", mine, register("more@x", "https://x.example")); status != http.StatusTooManyRequests {
		t.Errorf("in a full registry: %d %s", status, body)
	}
	more := registration{Entry: Entry{ID: "more@x", LastSeenAt: now}}
	if err := s.save(t.Context(), more, now.Add(2*time.Minute)); err != nil {
		t.Errorf("when nobody kept the others alive: %v", err)
	}
}

// TestRegistrationsAreBoundedInBytes: the total size of registrations is bounded. Large entries fill the registry
// before many exist, existing entries stay alive, and a deleted entry leaves only its name.
func TestRegistrationsAreBoundedInBytes(t *testing.T) {
	s, c := newTestServer(t, nil)
	large := strings.Repeat("x", 4096)
	now := time.Now().UTC()
	var changes []store.Change
	for i := range maxBytes/(8<<10) + 10 {
		var caps []string
		for len(caps) < 16 {
			caps = append(caps, large[:240])
		}
		k := registration{Entry: Entry{ID: fmt.Sprintf("b%d@own", i), AgentName: fmt.Sprint("b", i), Org: "own", PublicKey: "k", Status: "active", Description: large, Capabilities: caps, TrustScore: 0.5, LastSeenAt: now}}
		changes = append(changes, k.change())
		if len(changes) == 500 {
			if err := s.cfg.Records.Apply(t.Context(), changes, now); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	if err := s.cfg.Records.Apply(t.Context(), changes, now); err != nil {
		t.Fatal(err)
	}
	if status, body := c.do("POST", "/api/v1/agents", mine, register("more@x", "https://x.example")); status != http.StatusTooManyRequests {
		t.Errorf("in a registry that is full of bytes: %d %s", status, body)
	}
	var k registration
	rev, ok, err := store.ReadRecord(t.Context(), s.cfg.Records, ns, "b1@own", &k, now)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	k.rev, k.LastSeenAt = rev, now.Add(time.Second)
	if err := s.save(t.Context(), k, now); err != nil {
		t.Errorf("one that is there is not kept alive: %v", err)
	}
	k.rev++
	k.Description += "!"
	if err := s.save(t.Context(), k, now); !errors.Is(err, store.ErrQuota) {
		t.Errorf("one that is there grows: %v", err)
	}
}

// TestRegistryFollowsItsEntries: a heartbeat keeps the order and shows at once; a deleted entry leaves only its name.
func TestRegistryFollowsItsEntries(t *testing.T) {
	s, c := newTestServer(t, nil)
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
	rec, err := s.cfg.Records.Get(t.Context(), ns, "a@x", time.Now())
	if err != nil || strings.Contains(string(rec.Body), "long words") || strings.Contains(string(rec.Body), "x.example") {
		t.Errorf("of a deleted entry %s is left, %v", rec.Body, err)
	}
	if _, body := c.do("GET", "/api/v1/stats", "", ""); !strings.Contains(body, `"total_agents":2`) {
		t.Errorf("after one was deleted: %s", body)
	}
}
