package directory

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Tally is a capability or an intent with the number of live cards that have it.
type Tally struct {
	Name   string `json:"name"`
	Agents int    `json:"agents"`
}

// CapabilityPage is the response to GET /v1/capabilities, IntentPage the response to GET /v1/intents. Both are in byte
// order.
type (
	CapabilityPage struct {
		Capabilities []Tally `json:"capabilities"`
		Cursor       string  `json:"cursor,omitempty"`
	}
	IntentPage struct {
		Intents []Tally `json:"intents"`
		Cursor  string  `json:"cursor,omitempty"`
	}
)

// Counting takes time proportional to the number of cards. Each page is therefore counted at most once in tallyAge, for
// all clients and all limits.
const (
	tallyAge   = 10 * time.Second
	maxTallies = 64 // cached pages
)

type tallyKey struct {
	prefix, after string
}

type tally struct {
	at     time.Time
	counts []store.TermCount
}

// tallyCache keeps the pages that were counted last.
type tallyCache struct {
	mu    sync.Mutex
	pages map[tallyKey]tally
}

// get returns a page, counting one page at a time. Callers that waited for a count get it from the cache.
func (ts *tallyCache) get(ctx context.Context, cards store.Cards, key tallyKey, now time.Time) ([]store.TermCount, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if kept, ok := ts.pages[key]; ok && now.Sub(kept.at).Abs() < tallyAge {
		return kept.counts, nil
	}
	counts, err := cards.Terms(ctx, key.prefix, key.after, maxLimit+1, now)
	if err != nil {
		return nil, err
	}
	if ts.pages == nil {
		ts.pages = make(map[tallyKey]tally, maxTallies)
	}
	for other := range ts.pages {
		if len(ts.pages) < maxTallies {
			break
		}
		delete(ts.pages, other) // a random page: a client with many requests cannot choose which
	}
	ts.pages[key] = tally{now, counts}
	return counts, nil
}

// listTallies returns a page of the names in a family, and the cursor of the next page.
func (r *Registry) listTallies(ctx context.Context, family string, q Query, prefix string) ([]Tally, string, error) {
	if len(prefix) > maxTerm {
		return nil, "", wire.ErrQuery.At("prefix is longer than any name")
	}
	now := clock()
	p := plan{filters: filterHash([]string{"tally", family, prefix}, nil, nil, "")}
	key, limit := tallyKey{prefix: family + prefix}, cmp.Or(q.Limit, defaultLimit)
	if q.Cursor != "" {
		d, err := r.openDoc(ctx, q.Cursor, p, now)
		if err != nil {
			return nil, "", err
		}
		key.after = family + d.Last
	}
	counts, err := r.tallies.get(ctx, r.cards, key, now)
	if err != nil {
		return nil, "", fmt.Errorf("count %s: %w", family, err)
	}
	cursor := ""
	if len(counts) > limit {
		counts = counts[:limit]
		last := strings.TrimPrefix(counts[len(counts)-1].Term, family)
		if cursor, err = r.cursor(ctx, last, store.Position{}, p, now); err != nil {
			return nil, "", err
		}
	}
	list := make([]Tally, len(counts))
	for i, c := range counts {
		list[i] = Tally{strings.TrimPrefix(c.Term, family), c.Count}
	}
	return list, cursor, nil
}

// Capabilities lists the capabilities of live cards that start with prefix.
func (r *Registry) Capabilities(ctx context.Context, prefix, cursor string, limit int) (CapabilityPage, error) {
	list, next, err := r.listTallies(ctx, capFamily, Query{Limit: limit, Cursor: cursor}, prefix)
	return CapabilityPage{list, next}, err
}

// Intents lists the intents of live cards that start with prefix.
func (r *Registry) Intents(ctx context.Context, prefix, cursor string, limit int) (IntentPage, error) {
	list, next, err := r.listTallies(ctx, intentFamily, Query{Limit: limit, Cursor: cursor}, prefix)
	return IntentPage{list, next}, err
}

func (r *Registry) getCapabilities(c echo.Context) error {
	q, err := parseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return err
	}
	page, err := r.Capabilities(c.Request().Context(), c.QueryParam("prefix"), q.Cursor, q.Limit)
	if err != nil {
		return err
	}
	return respondDocument(c, page)
}

func (r *Registry) getIntents(c echo.Context) error {
	q, err := parseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return err
	}
	page, err := r.Intents(c.Request().Context(), c.QueryParam("prefix"), q.Cursor, q.Limit)
	if err != nil {
		return err
	}
	return respondDocument(c, page)
}
