package directory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/directory/discovery"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/words"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Bounds of a ranked search. It has tiers: queries whose results follow each other, best first. Each tier costs a walk
// over the index.
const (
	maxRankedWords = 6
	maxTiers       = 64
)

const entryFamily = "entry:"

// entryTerm returns the index term for the kind of ARD entry that a card becomes.
func entryTerm(card wire.Value) string {
	if discovery.A2ACard(card) != "" {
		return entryFamily + discovery.EntryA2A
	}
	return entryFamily + discovery.EntryMesh
}

// rank is one way to match a text, with the score of the agents that match it.
type rank struct {
	all   []string // the index terms of which an agent must have all
	score int
}

// newRanks returns the ways to match a text, best first: all words in the name, all words, all words but one, one word
// as a capability, one word. A search that needs all words, like that of the public page, would rarely find a card for
// a question in natural language. Only the maxRankedWords longest words count, because short ones are in most cards.
// Words of one or two bytes count only if there is no longer word.
func newRanks(text string) []rank {
	whole, last, n := words.Query(text)
	if n == 0 {
		return nil
	}
	list := append(whole, last)
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	list = slices.Compact(list)
	if len(list[0]) > 2 {
		list = slices.DeleteFunc(list, func(w string) bool { return len(w) < 3 })
	}
	list = list[:min(len(list), maxRankedWords)]
	n = len(list)
	ranks := []rank{{newTerms(nameFamily, list), 100}, {newTerms(wordFamily, list), 90}}
	for i := range list {
		if n > 2 {
			ranks = append(ranks, rank{newTerms(wordFamily, slices.Delete(slices.Clone(list), i, i+1)), 90 * (n - 1) / n})
		}
	}
	for _, w := range list {
		ranks = append(ranks, rank{[]string{capFamily + w}, 90 / n}, rank{[]string{wordFamily + w}, 90 / n})
	}
	return ranks
}

// planRanked returns how to run a ranked search. Each tier combines a way to match the text with one value of each list
// of s. The error is a *[wire.Error].
func planRanked(s discovery.Search) (plan, []rank, error) {
	base, err := Query{Limit: s.Limit}.plan()
	if err != nil {
		return plan{}, nil, err
	}
	if len(s.Text) > maxText {
		return plan{}, nil, wire.ErrQuery.At("the text must be at most 256 bytes")
	}
	ranks := newRanks(s.Text)
	tiers := [][]string{nil} // without a text, one tier without terms
	switch {
	case s.Text != "" && len(ranks) == 0:
		return plan{}, nil, wire.ErrQuery.At("the text" + withoutWord)
	case s.Text != "":
		tiers = nil
		for _, r := range ranks {
			tiers = append(tiers, r.all)
		}
	}
	hashed := []string{"ranked", s.Text}
	for _, list := range []struct {
		family string
		values []string
	}{{capFamily, s.Capabilities}, {intentFamily, s.Intents}, {verifiedFamily, s.Checks}, {entryFamily, s.Entry}} {
		terms := newTerms(list.family, list.values)
		hashed = append(hashed, list.family+strings.Join(terms, "\x00"))
		terms = slices.DeleteFunc(terms, func(t string) bool { return len(t) > maxTerm }) // no card has them
		switch {
		case len(list.values) == 0:
			continue
		case len(terms)*len(tiers) > maxTiers:
			return plan{}, nil, wire.ErrQuery.At("the text and the filter have too many words and values together")
		}
		var next [][]string // each tier, once with each term
		for _, all := range tiers {
			for _, term := range terms {
				next = append(next, append(slices.Clone(all), term))
			}
		}
		tiers = next
	}
	base.nothing = len(tiers) == 0
	for _, all := range tiers {
		if slices.Sort(all); len(all) > 0 {
			base.query.Tiers = append(base.query.Tiers, store.Tier{All: slices.Compact(all)})
		}
	}
	base.filters = cursor.HashFilters(hashed, nil, nil, "")
	return base, ranks, nil
}

// findRanked runs a ranked search for package discovery. With an empty text, every agent has the score 100.
func findRanked(ctx context.Context, r *Registry, s discovery.Search) (discovery.Found, error) {
	now := wire.Now()
	p, ranks, err := planRanked(s)
	if err != nil {
		return discovery.Found{}, err
	}
	found, err := r.runPlan(ctx, p, s.Cursor, now)
	if err != nil {
		return discovery.Found{}, err
	}
	out := discovery.Found{Cursor: found.cursor}
	for _, c := range found.Cards {
		card, m, err := listing.Parse(c)
		if err != nil {
			return discovery.Found{}, err
		}
		terms, score := searchTerms(card), 100
		for _, way := range ranks {
			score = way.score
			missing := func(t string) bool { return !slices.Contains(terms, t) }
			if !slices.ContainsFunc(way.all, missing) {
				break
			}
		}
		out.Agents = append(out.Agents, discovery.Agent{Card: card.Tree, Verification: m.Verification(now), Score: score})
	}
	return out, nil
}
