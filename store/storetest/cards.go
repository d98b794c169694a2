package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

var cardTests = []scenario{
	{"put and get", testPutGet},
	{"expiry to the instant", testCardExpiry},
	{"never expires", testCardWithoutEnd},
	{"renewal keeps seq and registration", testRenewal},
	{"compare and set", testCardCAS},
	{"reservation", testReservation},
	{"withdrawal", testWithdraw},
	{"reservation of another owner with a revision", testTakeover},
	{"a new card of an id that became free", testFreeAgain},
	{"quotas", testQuotas},
	{"records pay for a card", testCardRecords},
	{"one id, many takers", testCardRace},
	{"one quota, many takers", testQuotaRace},
	{"a list while terms change", testListRace},
}

// card returns a card of owner "owner" that is live for 30 days and then reserved for 30 more.
func card(id string, terms ...string) store.Card {
	return store.Card{
		ID: id, Body: []byte("body of " + id), Meta: []byte("meta of " + id), Owner: hash("owner"), Terms: terms,
		Registered: t0, Updated: t0, Expires: t0.Add(30 * day), ReservedUntil: t0.Add(60 * day),
	}
}

func putCard(t *testing.T, s store.Store, c store.Card) store.Card {
	t.Helper()
	stored, err := s.Cards().Put(t.Context(), store.PutCard{Card: c, Now: t0})
	wantOK(t, "Put "+c.ID, err)
	return stored
}

func testPutGet(t *testing.T, s store.Store) {
	in := card("am_a", "word:b", "cap:a", "word:b")
	in.Counts = []string{"token:1"}
	put := putCard(t, s, in)
	if put.Seq == 0 || put.Rev == store.Absent || put.Rev == store.Any {
		t.Errorf("Put gave seq %d, rev %d", put.Seq, put.Rev)
	}
	want := in
	want.Seq, want.Rev, want.Terms = put.Seq, put.Rev, []string{"cap:a", "word:b"}
	wantSame(t, "Put", put, want)
	got, err := s.Cards().Get(t.Context(), "am_a", t0)
	wantOK(t, "Get", err)
	wantSame(t, "Get", got, want)
	_, err = s.Cards().Get(t.Context(), "am_b", t0)
	wantErr(t, "Get of an unknown id", err, store.ErrNotFound)
	if next := putCard(t, s, card("am_b")); next.Seq <= put.Seq || next.Rev <= put.Rev {
		t.Errorf("second card has seq %d, rev %d after %d, %d", next.Seq, next.Rev, put.Seq, put.Rev)
	}
}

func testCardExpiry(t *testing.T, s store.Store) {
	c := putCard(t, s, card("am_a", "cap:a"))
	for _, test := range []struct {
		now        time.Time
		live, held bool
	}{
		{t0, true, true},
		{c.Expires.Add(-1), true, true},
		{c.Expires, false, true},
		{c.ReservedUntil.Add(-1), false, true},
		{c.ReservedUntil, false, false},
	} {
		_, err := s.Cards().Get(t.Context(), "am_a", test.now)
		if (err == nil) != test.live {
			t.Errorf("Get at %v = %v, want live %v", test.now, err, test.live)
		}
		_, err = s.Cards().Held(t.Context(), "am_a", test.now)
		if (err == nil) != test.held {
			t.Errorf("Held at %v = %v, want held %v", test.now, err, test.held)
		}
		several, err := s.Cards().HeldAll(t.Context(), []string{"am_none", "am_a", "am_a"}, test.now)
		wantOK(t, "HeldAll", err)
		var found []bool
		for _, c := range several {
			found = append(found, c.ID == "am_a" && c.Rev > 0 && len(c.Body) > 0)
		}
		wantSame(t, "HeldAll", found, []bool{false, test.held, test.held})
		want := 0
		if test.live {
			want = 1
		}
		page, err := s.Cards().List(t.Context(), store.CardQuery{All: []string{"cap:a"}, Limit: 5, Now: test.now})
		wantOK(t, "List", err)
		n, err := s.Cards().Count(t.Context(), test.now)
		wantOK(t, "Count", err)
		terms, err := s.Cards().Terms(t.Context(), "", "", 5, test.now)
		wantOK(t, "Terms", err)
		if len(page.Cards) != want || n != want || len(terms) != want {
			t.Errorf("at %v: %d listed, %d counted, %d terms, want %d", test.now, len(page.Cards), n, len(terms), want)
		}
	}
}

func testCardWithoutEnd(t *testing.T, s store.Store) {
	c := card("am_a")
	c.Expires, c.ReservedUntil = time.Time{}, time.Time{}
	putCard(t, s, c)
	later := t0.AddDate(200, 0, 0)
	got, err := s.Cards().Get(t.Context(), "am_a", later)
	wantOK(t, "Get 200 years later", err)
	if !got.Expires.IsZero() || !got.ReservedUntil.IsZero() {
		t.Errorf("zero times came back as %v and %v", got.Expires, got.ReservedUntil)
	}
	if n, err := s.Cards().Count(t.Context(), later); n != 1 || err != nil {
		t.Errorf("Count 200 years later = %d, %v", n, err)
	}
	wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_a", store.Any, time.Time{}, nil, t0))
	_, err = s.Cards().Held(t.Context(), "am_a", t0)
	wantErr(t, "Held without a reservation", err, store.ErrNotFound)
}

func testRenewal(t *testing.T, s store.Store) {
	first := putCard(t, s, card("am_a", "cap:a"))
	putCard(t, s, card("am_b", "cap:a"))
	again := card("am_a", "cap:b")
	again.Body, again.Registered, again.Expires = []byte("new"), t0.Add(time.Hour), t0.Add(40*day)
	second, err := s.Cards().Put(t.Context(), store.PutCard{Card: again, IfRev: first.Rev, Now: t0.Add(time.Hour)})
	wantOK(t, "renewal", err)
	if second.Seq != first.Seq || !second.Registered.Equal(t0) || second.Rev <= first.Rev {
		t.Errorf("renewal has seq %d, registered %v, rev %d after %d", second.Seq, second.Registered, second.Rev, first.Rev)
	}
	got, err := s.Cards().Get(t.Context(), "am_a", t0.Add(35*day))
	wantOK(t, "Get after renewal", err)
	wantSame(t, "renewed card", got, second)
	wantSame(t, "ids of cap:a", idsOf(t, s, store.CardQuery{All: []string{"cap:a"}}), []string{"am_b"})
	wantSame(t, "ids of cap:b", idsOf(t, s, store.CardQuery{All: []string{"cap:b"}}), []string{"am_a"})
}

func testCardCAS(t *testing.T, s store.Store) {
	cards := s.Cards()
	_, err := cards.Put(t.Context(), store.PutCard{Card: card("am_a"), IfRev: 7, Now: t0})
	wantErr(t, "Put of an absent card with a revision", err, store.ErrConflict)
	first := putCard(t, s, card("am_a"))
	_, err = cards.Put(t.Context(), store.PutCard{Card: card("am_a"), Now: t0})
	wantErr(t, "Put of a live id", err, store.ErrConflict)
	second, err := cards.Put(t.Context(), store.PutCard{Card: card("am_a"), IfRev: first.Rev, Now: t0})
	wantOK(t, "Put with the revision", err)
	_, err = cards.Put(t.Context(), store.PutCard{Card: card("am_a"), IfRev: first.Rev, Now: t0})
	wantErr(t, "Put with an old revision", err, store.ErrConflict)
	_, err = cards.Put(t.Context(), store.PutCard{Card: card("am_a"), IfRev: store.Any, Now: t0})
	wantOK(t, "Put with Any", err)
	wantErr(t, "Withdraw with an old revision", cards.Withdraw(t.Context(), "am_a", second.Rev, t0, nil, t0), store.ErrConflict)
	_, err = cards.Get(t.Context(), "am_a", t0)
	wantOK(t, "Get after a refused withdrawal", err)
}

func testReservation(t *testing.T, s store.Store) {
	first := putCard(t, s, card("am_a", "cap:a"))
	expired := first.Expires
	other := card("am_a")
	other.Owner = hash("other")
	other.Expires, other.ReservedUntil = expired.Add(30*day), expired.Add(60*day)
	_, err := s.Cards().Put(t.Context(), store.PutCard{Card: other, Now: expired})
	wantErr(t, "Put of a reserved id by another", err, store.ErrReserved)
	mine := other
	mine.Owner, mine.Registered, mine.Terms = first.Owner, expired, []string{"cap:b"}
	again, err := s.Cards().Put(t.Context(), store.PutCard{Card: mine, Now: expired})
	wantOK(t, "Put of a reserved id by its owner", err)
	if again.Seq != first.Seq || !again.Registered.Equal(first.Registered) {
		t.Errorf("revived card has seq %d, registered %v", again.Seq, again.Registered)
	}
	wantSame(t, "ids of cap:b", idsOf(t, s, store.CardQuery{All: []string{"cap:b"}, Now: expired}), []string{"am_a"})
	wantSame(t, "ids of cap:a", idsOf(t, s, store.CardQuery{All: []string{"cap:a"}, Now: expired}), nil)
}

func testWithdraw(t *testing.T, s store.Store) {
	c := putCard(t, s, card("am_a", "cap:a"))
	until := t0.Add(5 * day)
	wantErr(t, "Withdraw of an unknown id", s.Cards().Withdraw(t.Context(), "am_b", store.Any, until, nil, t0), store.ErrNotFound)
	wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_a", c.Rev, until, nil, t0))
	_, err := s.Cards().Get(t.Context(), "am_a", t0)
	wantErr(t, "Get after Withdraw", err, store.ErrNotFound)
	wantSame(t, "ids", idsOf(t, s, store.CardQuery{}), nil)
	held, err := s.Cards().Held(t.Context(), "am_a", t0)
	wantOK(t, "Held after Withdraw", err)
	if !held.Withdrawn || held.Rev <= c.Rev || !held.ReservedUntil.Equal(until) {
		t.Errorf("held card is withdrawn %v, rev %d after %d, reserved until %v", held.Withdrawn, held.Rev, c.Rev, held.ReservedUntil)
	}
	wantErr(t, "second Withdraw", s.Cards().Withdraw(t.Context(), "am_a", store.Any, until, nil, t0), store.ErrNotFound)
	again, err := s.Cards().Put(t.Context(), store.PutCard{Card: card("am_a", "cap:a"), Now: t0})
	wantOK(t, "Put by the owner after Withdraw", err)
	if again.Seq != c.Seq || again.Withdrawn {
		t.Errorf("card taken back has seq %d, withdrawn %v", again.Seq, again.Withdrawn)
	}
	wantSame(t, "ids", idsOf(t, s, store.CardQuery{All: []string{"cap:a"}}), []string{"am_a"})
}

func testTakeover(t *testing.T, s store.Store) {
	c := putCard(t, s, card("am_a"))
	other := card("am_a")
	other.Owner = hash("other")
	other.Expires = c.Expires.Add(day)
	got, err := s.Cards().Put(t.Context(), store.PutCard{Card: other, IfRev: c.Rev, Now: c.Expires})
	wantOK(t, "Put with the revision of an expired card", err)
	if got.Seq != c.Seq || got.Owner != other.Owner {
		t.Errorf("seq %d, owner changed %v", got.Seq, got.Owner == other.Owner)
	}
}

func testFreeAgain(t *testing.T, s store.Store) {
	c := putCard(t, s, card("am_a", "cap:a"))
	free := c.ReservedUntil
	other := card("am_a", "cap:b")
	other.Owner, other.Registered, other.Expires = hash("other"), free, free.Add(day)
	_, err := s.Cards().Put(t.Context(), store.PutCard{Card: other, IfRev: c.Rev, Now: free})
	wantErr(t, "Put with the revision of a card that is gone", err, store.ErrConflict)
	got, err := s.Cards().Put(t.Context(), store.PutCard{Card: other, Now: free})
	wantOK(t, "Put of a free id", err)
	if got.Seq <= c.Seq || got.Rev <= c.Rev || !got.Registered.Equal(free) {
		t.Errorf("seq %d, rev %d, registered %v; the first had %d, %d", got.Seq, got.Rev, got.Registered, c.Seq, c.Rev)
	}
	wantSame(t, "ids", idsOf(t, s, store.CardQuery{Now: free}), []string{"am_a"})
	wantSame(t, "ids of cap:a", idsOf(t, s, store.CardQuery{All: []string{"cap:a"}, Now: free}), nil)
}

func testQuotas(t *testing.T, s store.Store) {
	put := func(id string, now time.Time, quotas ...store.Quota) error {
		c := card(id)
		c.Counts = []string{"token:1", "host:1"}
		c.Expires, c.ReservedUntil = now.Add(day), now.Add(3*day)
		_, err := s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Quotas: quotas, Now: now})
		return err
	}
	has := func(want bool, key string, now time.Time) {
		t.Helper()
		if got, err := s.Cards().HasCount(t.Context(), key, now); got != want || err != nil {
			t.Errorf("HasCount %s = %v, %v, want %v", key, got, err, want)
		}
	}
	has(false, "token:1", t0)
	two := store.Quota{Key: "token:1", Max: 2}
	wantOK(t, "first", put("am_a", t0, two))
	wantOK(t, "second", put("am_b", t0, two))
	wantErr(t, "third", put("am_c", t0, two), store.ErrQuota)
	wantOK(t, "renewal of the second", put("am_b", t0, two))
	wantOK(t, "another key", put("am_d", t0, store.Quota{Key: "token:2", Max: 1}))
	wantOK(t, "no limit", put("am_e", t0, store.Quota{Key: "token:1"}))
	wantErr(t, "one of two quotas", put("am_f", t0, store.Quota{Key: "token:2", Max: 1}, store.Quota{Key: "host:1", Max: 3}), store.ErrQuota)
	taken := card("am_a")
	taken.Counts = []string{"token:1"}
	_, err := s.Cards().Put(t.Context(), store.PutCard{Card: taken, Quotas: []store.Quota{{Key: "token:1", Max: 3}}, Now: t0})
	wantErr(t, "a quota beats a taken id", err, store.ErrQuota)
	_, err = s.Cards().Put(t.Context(), store.PutCard{Card: taken, Quotas: []store.Quota{{Key: "token:1", Max: 9}}, Now: t0})
	wantErr(t, "a taken id within its quotas", err, store.ErrConflict)
	has(true, "token:1", t0)
	has(true, "host:1", t0)
	has(false, "token", t0)
	has(false, "token:1", t0.Add(day))
	wantOK(t, "when the others have expired", put("am_c", t0.Add(day), two))
	wantOK(t, "withdraw", s.Cards().Withdraw(t.Context(), "am_c", store.Any, t0.Add(9*day), nil, t0.Add(day)))
	has(false, "token:1", t0.Add(day))
	wantOK(t, "when one is withdrawn", put("am_g", t0.Add(day), store.Quota{Key: "token:1", Max: 1}))
}

func testCardRecords(t *testing.T, s store.Store) {
	invite := store.Record{NS: "invites", Key: "i1", Body: []byte("x")}
	wantOK(t, "invite", s.Records().Apply(t.Context(), []store.Change{{Record: invite}}, t0))
	rec, err := s.Records().Get(t.Context(), "invites", "i1", t0)
	wantOK(t, "Get invite", err)
	spend := []store.Change{{Record: store.Record{NS: "invites", Key: "i1"}, IfRev: rec.Rev, Delete: true}}
	_, err = s.Cards().Put(t.Context(), store.PutCard{Card: card("am_a"), Records: spend, Now: t0})
	wantOK(t, "Put with an invite", err)
	_, err = s.Records().Get(t.Context(), "invites", "i1", t0)
	wantErr(t, "Get of a spent invite", err, store.ErrNotFound)
	_, err = s.Cards().Put(t.Context(), store.PutCard{Card: card("am_b"), Records: spend, Now: t0})
	wantErr(t, "Put with a spent invite", err, store.ErrConflict)
	_, err = s.Cards().Get(t.Context(), "am_b", t0)
	wantErr(t, "Get of the card nobody paid for", err, store.ErrNotFound)

	audit := []store.Change{{Record: store.Record{NS: "audit", Key: "1"}}}
	_, err = s.Cards().Put(t.Context(), store.PutCard{Card: card("am_a"), Records: audit, Now: t0})
	wantErr(t, "Put of a live id", err, store.ErrConflict)
	_, err = s.Records().Get(t.Context(), "audit", "1", t0)
	wantErr(t, "record of a refused Put", err, store.ErrNotFound)
	wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_a", store.Any, t0, audit, t0))
	_, err = s.Records().Get(t.Context(), "audit", "1", t0)
	wantOK(t, "record of a withdrawal", err)
}

func testCardRace(t *testing.T, s store.Store) {
	won := race(t, 16, func(int) error {
		_, err := s.Cards().Put(t.Context(), store.PutCard{Card: card("am_a"), Now: t0})
		return err
	}, store.ErrConflict)
	if won != 1 {
		t.Errorf("%d of 16 got the id", won)
	}
}

func testQuotaRace(t *testing.T, s store.Store) {
	won := race(t, 16, func(i int) error {
		c := card("am_" + string(rune('a'+i)))
		c.Counts = []string{"token:1"}
		_, err := s.Cards().Put(t.Context(), store.PutCard{Card: c, Quotas: []store.Quota{{Key: "token:1", Max: 3}}, Now: t0})
		return err
	}, store.ErrQuota)
	if won != 3 {
		t.Errorf("%d of 16 got into a quota of 3", won)
	}
}

// testListRace: a list has no card whose terms have changed, however the change falls between the index and the row.
func testListRace(t *testing.T, s store.Store) {
	terms := [2]string{"cap:a", "cap:b"}
	var all sync.WaitGroup
	defer all.Wait()
	done := make(chan struct{})
	all.Go(func() {
		defer close(done)
		for i := range 40 {
			c := card("am_a", terms[i%2])
			c.Body = []byte(terms[i%2])
			if _, err := s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Now: t0}); err != nil {
				t.Errorf("Put = %v", err)
			}
		}
	})
	for range 2 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				page, err := s.Cards().List(t.Context(), store.CardQuery{All: terms[i%2 : i%2+1], Limit: 1, Now: t0})
				if err != nil || len(page.Cards) > 0 && string(page.Cards[0].Body) != terms[i%2] {
					t.Errorf("the list of %s has %v, %v", terms[i%2], page.Cards, err)
					return
				}
			}
		})
	}
}

// race makes n concurrent calls of fn and returns how many succeeded. Every other call must fail with refusal.
func race(t *testing.T, n int, fn func(i int) error, refusal error) int {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = fn(i) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, refusal) {
			t.Errorf("loser got %v, want %v", err, refusal)
		}
	}
	return won
}
