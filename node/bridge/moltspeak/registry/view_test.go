package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
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
	var reads *countedRecords
	s, c := newTestServer(t, func(c *Config) {
		reads = &countedRecords{Records: c.Records}
		c.Directory, c.Records = d, reads
	})
	now := time.Now().UTC()
	fill(t, s, 2000, func(reg *registration) { reg.Capabilities, reg.Seen = []string{"x"}, now })
	read := reads.calls.Load()
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
	if pages, records := d.pages.Load(), reads.calls.Load()-read; pages > 10 || records > 0 {
		t.Errorf("48 requests read %d pages of the directory and %d times the store, want one walk over the directory", pages, records)
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
	s.mu.Lock()
	s.readAt = time.Now().Add(-cardsFor)
	s.mu.Unlock()
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
	if list := s.list(t.Context()); len(list) != 0 {
		t.Fatalf("%d entries", len(list))
	}
	d.list = append(d.list, mustTree(t, listedCard))
	s.readAt = time.Now().Add(-cardsFor)
	gone, leave := context.WithCancel(t.Context())
	leave()
	if list := s.list(gone); len(list) != 1 {
		t.Errorf("a minute later: %d entries, want the new card", len(list))
	}
}

// fill stores n registrations.
func fill(t *testing.T, s *Server, n int, change func(*registration)) {
	t.Helper()
	var list []*registration
	for i := range n {
		now := wire.Now()
		reg := &registration{Account: credential.Account{ID: fmt.Sprintf("b%d@own", i), Created: now, Seen: now}, PublicKey: "k", Capabilities: []string{}}
		change(reg)
		list = append(list, reg)
	}
	for batch := range slices.Chunk(list, 500) {
		var changes []store.Change
		for _, reg := range batch {
			change, err := s.accounts.Change(reg)
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, change)
		}
		if err := s.cfg.Records.Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
		s.accounts.Publish(batch...)
	}
}

// countedRecords counts reads.
type countedRecords struct {
	store.Records
	calls atomic.Int64
}

func (r *countedRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	r.calls.Add(1)
	return r.Records.Get(ctx, ns, key, now)
}

func (r *countedRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	r.calls.Add(1)
	return r.Records.List(ctx, ns, term, after, limit, now)
}

// TestRegistrationsAreBounded: an address can register only a few agents per hour, the registry has a maximum, and a
// name becomes free a while after nobody keeps it alive.
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
	fill(t, s, credential.MaxAccounts, func(*registration) {})
	if status, body := c.do("POST", "/api/v1/agents", mine, register("more@x", "https://x.example")); status != http.StatusTooManyRequests {
		t.Errorf("in a full registry: %d %s", status, body)
	}
	now := time.Now()
	for _, tt := range []struct {
		reg  registration
		want time.Duration
	}{
		{registration{}, 30 * 24 * time.Hour},
		{registration{KeyUsed: now}, 365 * 24 * time.Hour},
	} {
		tt.reg.Seen = now
		if got := until(&tt.reg).Sub(now); got != tt.want {
			t.Errorf("%+v stays for %v, want %v", tt.reg, got, tt.want)
		}
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
	if _, body := c.do("GET", "/api/v1/agents", "", ""); json.Unmarshal([]byte(body), &list) != nil || len(list.Agents) != 3 || list.Agents[2].ID != "b@x" || list.Agents[2].Description != "other words" {
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
