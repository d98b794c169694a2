//go:build slow

package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestUnsafeSettings checks that a server that may lose what it acknowledged is refused, unless the owner says so.
func TestUnsafeSettings(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"off", "local"} {
		cfg := Config{URL: pgtest.Database(t) + "&synchronous_commit=" + setting}
		if _, err := Open(t.Context(), cfg); !errors.Is(err, ErrUnsafe) {
			t.Errorf("Open with synchronous_commit=%s = %v", setting, err)
		}
		cfg.AllowUnsafe = true
		open(t, cfg)
	}
}

// TestLongCards checks that the index is built from cards whose terms do not fit into what the build reads first, and
// that it follows other processes.
func TestLongCards(t *testing.T) {
	t.Parallel()
	cfg := Config{URL: pgtest.Database(t)}
	a := open(t, cfg)
	long := store.Card{ID: "am_long", Terms: []string{"word:last"}, Expires: now.Add(time.Hour)}
	for i := range 500 {
		long.Terms = append(long.Terms, "word:"+string(rune('a'+i%26))+time.Unix(int64(i), 0).UTC().Format(time.RFC3339Nano))
	}
	if _, err := a.Cards().Put(t.Context(), store.PutCard{Card: long, Now: now}); err != nil {
		t.Fatal(err)
	}
	b := open(t, cfg)
	count := func(s *Store, term string, want int) {
		t.Helper()
		terms, err := s.Cards().Terms(t.Context(), term, "", 5, now)
		if err != nil || len(terms) != want {
			t.Errorf("Terms(%s) = %v, %v, want %d", term, terms, err, want)
		}
	}
	count(b, "word:last", 1)
	// The other process withdraws the card, frees the id at once, and takes it again with other terms, between two
	// looks at the feed.
	if err := a.Cards().Withdraw(t.Context(), long.ID, store.Any, time.Time{}, nil, now); err != nil {
		t.Fatal(err)
	}
	next := store.Card{ID: long.ID, Terms: []string{"word:next"}, Expires: now.Add(time.Hour)}
	if _, err := a.Cards().Put(t.Context(), store.PutCard{Card: next, Now: now}); err != nil {
		t.Fatal(err)
	}
	count(b, "word:last", 0)
	count(b, "word:next", 1)
	if n, err := b.Cards().Count(t.Context(), now); n != 1 || err != nil {
		t.Errorf("Count = %d, %v", n, err)
	}
}
