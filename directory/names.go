package directory

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// NameCount is a capability or an intent with the number of live cards that have it.
type NameCount struct {
	Name   string `json:"name"`
	Agents int    `json:"agents"`
}

// CapabilityPage is the response to GET /v1/capabilities, and IntentPage to GET /v1/intents. Both list names in byte
// order.
type (
	CapabilityPage struct {
		Capabilities []NameCount `json:"capabilities"`
		Cursor       string      `json:"cursor,omitempty"`
	}
	IntentPage struct {
		Intents []NameCount `json:"intents"`
		Cursor  string      `json:"cursor,omitempty"`
	}
)

// Counting takes time proportional to the number of cards. So a page is counted at most once in nameCountAge.
const (
	nameCountAge    = 10 * time.Second
	maxCountedPages = 64 // cached pages
)

type countKey struct {
	prefix, after string
}

type countedPage struct {
	at     time.Time
	counts []store.TermCount
}

type nameCountCache struct {
	mu    sync.Mutex
	pages map[countKey]countedPage
}

// get returns a page from the cache, or counts it. It counts one page at a time, so that waiting callers share a count.
func (c *nameCountCache) get(ctx context.Context, cards store.Cards, key countKey, now time.Time) ([]store.TermCount, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.pages[key]; ok && now.Sub(kept.at).Abs() < nameCountAge {
		return kept.counts, nil
	}
	counts, err := cards.Terms(ctx, key.prefix, key.after, maxLimit+1, now)
	if err != nil {
		return nil, err
	}
	if c.pages == nil {
		c.pages = make(map[countKey]countedPage, maxCountedPages)
	}
	for other := range c.pages {
		if len(c.pages) < maxCountedPages {
			break
		}
		delete(c.pages, other) // a random page, so that no client can choose it
	}
	c.pages[key] = countedPage{now, counts}
	return counts, nil
}

// listNames returns a page of the capabilities or intents that start with prefix, and the cursor of the next page.
// family is capFamily or intentFamily.
func (r *Registry) listNames(ctx context.Context, family string, q Query, prefix string) (list []NameCount, next string, err error) {
	if len(prefix) > maxTerm {
		return nil, "", wire.ErrQuery.At("prefix is longer than any name")
	}
	now := wire.Now()
	filters := cursor.HashFilters([]string{"tally", family, prefix}, nil, nil, "") // no other list accepts the cursors
	key, limit := countKey{prefix: family + prefix}, cmp.Or(q.Limit, defaultLimit)
	if q.Cursor != "" {
		d, err := r.cursors.Open(ctx, q.Cursor, filters)
		if err != nil {
			return nil, "", err
		}
		key.after = family + d.Last
	}
	counts, err := r.nameCounts.get(ctx, r.cards, key, now)
	if err != nil {
		return nil, "", fmt.Errorf("count %s: %w", family, err)
	}
	if len(counts) > limit {
		counts = counts[:limit]
		last := strings.TrimPrefix(counts[len(counts)-1].Term, family)
		if next, err = r.cursors.Seal(ctx, last, store.Position{}, filters); err != nil {
			return nil, "", err
		}
	}
	list = make([]NameCount, len(counts))
	for i, c := range counts {
		list[i] = NameCount{strings.TrimPrefix(c.Term, family), c.Count}
	}
	return list, next, nil
}

// Capabilities lists the capabilities that live cards have and that start with prefix.
func (r *Registry) Capabilities(ctx context.Context, prefix, cursor string, limit int) (CapabilityPage, error) {
	list, next, err := r.listNames(ctx, capFamily, Query{Limit: limit, Cursor: cursor}, prefix)
	return CapabilityPage{list, next}, err
}

// Intents lists the intents that live cards have and that start with prefix.
func (r *Registry) Intents(ctx context.Context, prefix, cursor string, limit int) (IntentPage, error) {
	list, next, err := r.listNames(ctx, intentFamily, Query{Limit: limit, Cursor: cursor}, prefix)
	return IntentPage{list, next}, err
}

// handleNames returns the handler for a list of names.
func handleNames[Page any](list func(ctx context.Context, prefix, cursor string, limit int) (Page, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		q, err := ParseQuery(c.Request().URL.RawQuery)
		if err != nil {
			return err
		}
		page, err := list(c.Request().Context(), c.QueryParam("prefix"), q.Cursor, q.Limit)
		if err != nil {
			return err
		}
		return respondDocument(c, page)
	}
}
