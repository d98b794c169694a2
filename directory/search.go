package directory

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/words"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Bounds of a query (AM-52).
const (
	defaultLimit = 20
	maxLimit     = 100
	maxPageBytes = 1 << 20 // of cards or messages on a page, whatever its limit, because slow readers keep many pages in memory
	maxText      = 256     // bytes of q
	maxWords     = 8       // words of q
	maxFilters   = 64      // capabilities, and as many intents; a card has no more
)

// withoutWord is why a text selects no card: cards are found by words, and emoji and punctuation are none.
const withoutWord = " must have a letter or a digit, because a search does not look at emoji and punctuation"

// A term is a key under which the index lists a card, such as "cap:translation"; its family is its beginning. "word"
// covers name and description, "name" only the name, so that a match in the name can rank first (AM-53).
const (
	capFamily    = "cap:"
	intentFamily = "intent:"
	nameFamily   = "name:"
	wordFamily   = "word:"
)

const (
	maxNameWords = 128
	maxTextWords = store.MaxTerms - 2*maxFilters - maxNameWords - maxFilterTerms // of name and description together
)

// searchTerms returns the terms by which a search finds a card. The store bounds them, so words of the description may
// be missing.
func searchTerms(c wire.Card) []string {
	list := make([]string, 0, 64)
	add := func(family, text string) {
		if text != "" {
			list = append(list, family+text)
		}
	}
	for _, s := range c.Capabilities {
		add(capFamily, s)
	}
	for _, s := range c.Intents {
		add(intentFamily, string(s))
	}
	name := words.Index(c.Name, maxNameWords)
	for _, w := range name {
		add(nameFamily, w)
		add(wordFamily, w)
	}
	described := 0
	for _, w := range words.Index(c.Description, maxTextWords) {
		if described == maxTextWords-len(name) {
			break
		}
		if !slices.Contains(name, w) {
			add(wordFamily, w)
			described++
		}
	}
	list = append(list, filterTerms(c)...)
	slices.Sort(list)
	return slices.Compact(list)
}

// Query is a search (AM-52). A card must match all parts.
type Query struct {
	Capabilities []string
	Intents      []string
	Prefixes     []string        // beginnings of capabilities
	Owner        string          // words of owner.name
	Framework    string          // words of metadata.agent_framework and metadata.framework
	Location     string          // words of the places and time zones in metadata and availability
	Verified     []listing.Check // checks that the directory must have made
	Text         string          // words of name and description; the last one also as a prefix
	Limit        int             // 1 to 100; 0 is 20
	Cursor       string          // from the previous page
}

// plan is a valid query in the form that the store runs.
type plan struct {
	query   store.CardQuery
	filters cursor.Filters
	nothing bool // the query cannot match any card
}

// plan validates a query and returns how to run it. The error is a *[wire.Error].
func (q Query) plan() (plan, error) {
	if q.Limit == 0 {
		q.Limit = defaultLimit
	}
	switch {
	case q.Limit < 1 || q.Limit > maxLimit:
		return plan{}, wire.ErrQuery.At("limit must be 1 to 100")
	case len(q.Text) > maxText:
		return plan{}, wire.ErrQuery.At("q must be at most 256 bytes")
	case !utf8.ValidString(q.Text):
		return plan{}, wire.ErrQuery.At("q must be UTF-8")
	case len(q.Capabilities) > maxFilters || len(q.Intents) > maxFilters:
		return plan{}, wire.ErrQuery.At("at most 64 capabilities and 64 intents may be given")
	}
	whole, prefix, n := words.Query(q.Text)
	switch {
	case n > maxWords:
		return plan{}, wire.ErrQuery.At("q must have at most 8 words")
	case n == 0 && q.Text != "":
		return plan{}, wire.ErrQuery.At("q" + withoutWord)
	}
	p := plan{query: store.CardQuery{Limit: q.Limit, All: append(newTerms(capFamily, q.Capabilities), newTerms(intentFamily, q.Intents)...)}}
	if err := q.addFilters(&p.query); err != nil {
		return plan{}, err
	}
	slices.Sort(p.query.All)
	p.query.All = slices.Compact(p.query.All)
	p.filters = cursor.HashFilters(p.query.All, p.query.Prefixes, whole, prefix)
	tooLong := func(t string) bool { return len(t) > maxTerm }
	p.nothing = slices.ContainsFunc(p.query.All, tooLong) || slices.ContainsFunc(p.query.Prefixes, tooLong)
	if n == 0 {
		return p, nil
	}
	p.query.Tiers = []store.Tier{ // AM-53
		{All: newTerms(nameFamily, append(whole[:len(whole):len(whole)], prefix))},
		{All: newTerms(nameFamily, whole), Prefix: nameFamily + prefix},
		{All: newTerms(wordFamily, whole), Prefix: wordFamily + prefix},
	}
	return p, nil
}

// maxTerm bounds the terms of a card: the family, and 128 characters of at most 4 bytes (AM-4).
const maxTerm = len(intentFamily) + 4*128

func newTerms(family string, words []string) []string {
	list := make([]string, len(words))
	for i, w := range words {
		list[i] = family + w
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// page is a page of a search. cursor is "" on the last page.
type page struct {
	store.CardPage
	cursor string
}

// search returns the page of results that q selects.
func (r *Registry) search(ctx context.Context, q Query, now time.Time) (page, error) {
	p, err := q.plan()
	if err != nil {
		return page{}, err
	}
	return r.runPlan(ctx, p, q.Cursor, now)
}

// runPlan returns the page of a query after the position in pageCursor. If pageCursor is "", it returns the first page.
func (r *Registry) runPlan(ctx context.Context, p plan, pageCursor string, now time.Time) (result page, err error) {
	if pageCursor != "" {
		at, err := r.cursors.Open(ctx, pageCursor, p.filters)
		if err != nil {
			return page{}, err
		}
		p.query.After = at.Position()
	}
	if p.nothing {
		return page{}, nil
	}
	p.query.Now = now
	found, err := r.cards.List(ctx, p.query)
	if fit := countFitting(found.Cards); fit < len(found.Cards) {
		p.query.Limit = fit
		found, err = r.cards.List(ctx, p.query) // again, for the position of the shorter page
	}
	if err != nil {
		return page{}, fmt.Errorf("search: %w", err)
	}
	result.CardPage = found
	if found.Next != nil && len(found.Cards) > 0 {
		result.cursor, err = r.cursors.Seal(ctx, found.Cards[len(found.Cards)-1].ID, *found.Next, p.filters)
	}
	return result, err
}

// countFitting returns how many cards from the start of the list fit on a page: at least one.
func countFitting(cards []store.Card) int {
	size := 0
	for i := range cards {
		if size += len(cards[i].Body); size > maxPageBytes {
			return max(i, 1)
		}
	}
	return len(cards)
}
