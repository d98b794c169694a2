package storetest

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

var changeTests = []scenario{
	{"feed", testChanges},
	{"end of a reservation", testChangesAfterReservation},
	{"an id that is used again is in the feed once", testChangesFreeAgain},
	{"tombstones age", testTombstoneAge},
}

// allChanges reads the feed after the given change in pages of two and checks its order, forward and backward.
func allChanges(t *testing.T, s store.Store, after uint64) (all []store.CardChange) {
	t.Helper()
	defer func() {
		newest, err := s.Cards().LatestChanges(t.Context(), len(all)+1)
		wantOK(t, "LatestChanges", err)
		for i, c := range slices.Backward(all) {
			if at := len(all) - 1 - i; at >= len(newest) || newest[at] != c {
				t.Fatalf("the newest changes are %+v, the feed is %+v", newest, all)
			}
		}
	}()
	for {
		page, err := s.Cards().Changes(t.Context(), after, 2)
		wantOK(t, "Changes", err)
		for _, c := range page {
			if c.Change <= after {
				t.Fatalf("change %d comes after %d", c.Change, after)
			}
			after = c.Change
		}
		if all = append(all, page...); len(page) < 2 {
			return all
		}
	}
}

type idGone struct {
	ID   string
	Gone bool
}

func wantChanges(t *testing.T, what string, got []store.CardChange, want ...idGone) {
	t.Helper()
	var short []idGone
	for _, c := range got {
		short = append(short, idGone{c.ID, c.Gone})
	}
	wantSame(t, what, short, want)
}

// sweepAll sweeps until nothing is left to sweep.
func sweepAll(t *testing.T, s store.Store, now time.Time) {
	t.Helper()
	for {
		n, err := s.Sweep(t.Context(), now, 100)
		wantOK(t, "Sweep", err)
		if n < 100 {
			return
		}
	}
}

func testChanges(t *testing.T, s store.Store) {
	wantChanges(t, "empty feed", allChanges(t, s, 0))
	a := putCard(t, s, card("am_a"))
	putCard(t, s, card("am_b"))
	putCard(t, s, card("am_c"))
	all := allChanges(t, s, 0)
	wantChanges(t, "feed", all, idGone{"am_a", false}, idGone{"am_b", false}, idGone{"am_c", false})
	if !all[0].At.Equal(t0) {
		t.Errorf("change happened at %v, want %v", all[0].At, t0)
	}
	last := all[2].Change
	_, err := s.Cards().Put(t.Context(), store.PutCard{Card: card("am_a"), IfRev: a.Rev, Now: t0})
	wantOK(t, "renewal", err)
	wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_b", store.Any, t0.Add(day), nil, t0))
	wantChanges(t, "feed after two changes", allChanges(t, s, 0), idGone{"am_c", false}, idGone{"am_a", false}, idGone{"am_b", true})
	wantChanges(t, "feed since the third change", allChanges(t, s, last), idGone{"am_a", false}, idGone{"am_b", true})
	putCard(t, s, card("am_b"))
	wantChanges(t, "feed after b came back", allChanges(t, s, last), idGone{"am_a", false}, idGone{"am_b", false})
	for _, after := range []uint64{0, math.MaxUint64} {
		_, err = s.Cards().Changes(t.Context(), after, 0)
		wantMistake(t, "limit 0", err)
	}
	none, err := s.Cards().Changes(t.Context(), math.MaxUint64, 2)
	wantOK(t, "Changes after the largest position", err)
	wantChanges(t, "changes after the largest position", none)
	_, err = s.Cards().LatestChanges(t.Context(), 0)
	wantMistake(t, "limit 0", err)
	newest, err := s.Cards().LatestChanges(t.Context(), 1)
	wantOK(t, "LatestChanges", err)
	wantChanges(t, "newest change", newest, idGone{"am_b", false})
}

func testChangesAfterReservation(t *testing.T, s store.Store) {
	c := putCard(t, s, card("am_a"))
	putCard(t, s, card("am_b"))
	wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_b", store.Any, t0.Add(day), nil, t0))
	before := allChanges(t, s, 0)
	sweepAll(t, s, c.Expires)
	wantSame(t, "feed after expiry", allChanges(t, s, 0), before)
	sweepAll(t, s, c.ReservedUntil)
	after := allChanges(t, s, 0)
	wantChanges(t, "feed after the reservations", after, idGone{"am_b", true}, idGone{"am_a", true})
	if !before[1].Withdrawn || !after[0].Withdrawn || after[1].Withdrawn {
		t.Errorf("am_b was withdrawn and am_a was not, but the feed says %+v, then %+v", before, after)
	}
	for _, id := range []string{"am_a", "am_b"} {
		_, err := s.Cards().Held(t.Context(), id, t0)
		wantErr(t, "Held after Sweep, with a time before the sweep", err, store.ErrNotFound)
	}
}

func testChangesFreeAgain(t *testing.T, s store.Store) {
	first := putCard(t, s, card("am_a"))
	for _, now := range []time.Time{first.ReservedUntil, first.ReservedUntil.Add(100 * day)} {
		again := card("am_a")
		again.Expires, again.ReservedUntil = now.Add(day), now.Add(2*day)
		_, err := s.Cards().Put(t.Context(), store.PutCard{Card: again, Now: now})
		wantOK(t, "Put of a free id", err)
		wantChanges(t, "feed", allChanges(t, s, 0), idGone{"am_a", false})
		sweepAll(t, s, now.Add(3*day))
		wantChanges(t, "feed after Sweep", allChanges(t, s, 0), idGone{"am_a", true})
	}
}

func testTombstoneAge(t *testing.T, s store.Store) {
	c := putCard(t, s, card("am_a"))
	keep := card("am_b")
	keep.Expires = time.Time{}
	putCard(t, s, keep)
	gone := c.ReservedUntil
	sweepAll(t, s, gone)
	sweepAll(t, s, gone.Add(364*day))
	wantChanges(t, "feed after 364 days", allChanges(t, s, 0), idGone{"am_b", false}, idGone{"am_a", true})
	sweepAll(t, s, gone.Add(366*day))
	wantChanges(t, "feed after a year", allChanges(t, s, 0), idGone{"am_b", false})
	putCard(t, s, card("am_a"))
	wantChanges(t, "feed", allChanges(t, s, 0), idGone{"am_b", false}, idGone{"am_a", false})
}
