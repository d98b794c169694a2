package bolt

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// contents is what an index contains about the live cards. It leaves out other cards, because a sweep may have removed
// some of them that the rows still list until their reservation ends.
type contents struct {
	Terms   map[string][]cardindex.Slot
	Expires map[cardindex.Slot]int64
	All     []cardindex.Slot
}

func contentsOf(ix *cardindex.Index, now time.Time) contents {
	c := contents{Terms: make(map[string][]cardindex.Slot), Expires: make(map[cardindex.Slot]int64)}
	for at, expires := range ix.Ends {
		if engine.Nanos(now) < expires {
			c.Expires[at] = expires
		}
	}
	find := func(terms ...string) []cardindex.Slot {
		return ix.Candidates(nil, store.CardQuery{All: terms}, []store.Tier{{}}, engine.Nanos(now), 0, math.MaxInt)
	}
	c.All = find()
	for term := range ix.TermsAfter("", "") {
		if slots := find(term); len(slots) > 0 {
			c.Terms[term] = slots
		}
	}
	return c
}

// wantBuilt compares the index of s with an index that is built from the cards.
func wantBuilt(t *testing.T, s *Store, now time.Time) {
	t.Helper()
	built := &Store{db: s.db}
	if err := built.buildIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contentsOf(built.index.Load(), now), contentsOf(s.index.Load(), now)); diff != "" {
		t.Errorf("index differs from the cards (-cards +index):\n%s", diff)
	}
}

// churn renews, changes, withdraws, revives, sweeps and registers cards.
func churn(t *testing.T, s *Store, mix *cardMix, now time.Time, n int) {
	t.Helper()
	for range n {
		c := mix.Card(1 + rand.IntN(mix.count))
		c.Expires, c.ReservedUntil = now.Add(time.Duration(rand.IntN(48))*time.Hour), now.Add(48*time.Hour)
		var err error
		switch rand.IntN(6) {
		case 0:
			err = s.Cards().Withdraw(t.Context(), c.ID, store.Any, now.Add(time.Hour), nil, now)
		case 1:
			_, err = s.Sweep(t.Context(), now, 50)
		case 2:
			mix.count++
			c = mix.Card(mix.count)
			fallthrough
		case 3:
			_, err = s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Now: now})
		default:
			c.Terms = append(c.Terms, fmt.Sprintf("word:extra%d", rand.IntN(50)))
			_, err = s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Now: now})
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
	}
}

// TestIndexFollowsChanges compares the index with the cards after changes, and after the file was opened again.
func TestIndexFollowsChanges(t *testing.T) {
	s := openNew(t, Config{})
	mix := newCardMix(now)
	mix.fill(t, s, 2000)
	at := now
	for range 4 {
		churn(t, s, mix, at, 60)
		wantBuilt(t, s, at)
		if err := s.reopenFile(); err != nil {
			t.Fatal(err)
		}
		at = at.Add(20 * time.Hour)
	}
}
