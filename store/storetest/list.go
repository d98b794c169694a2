package storetest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/agentmesh/agentmesh/store"
)

var listTests = []scenario{
	{"all terms", testListAll},
	{"pages", testListPages},
	{"tiers", testListTiers},
	{"prefix", testListPrefix},
	{"prefixes beside tiers", testListPrefixes},
	{"pages under inserts and deletes", testListMoving},
	{"long lists", testListLong},
	{"terms", testTerms},
}

// idsOf returns the ids of all pages of a query.
func idsOf(t *testing.T, s store.Store, q store.CardQuery) []string {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 2
	}
	if q.Now.IsZero() {
		q.Now = t0
	}
	var ids []string
	for {
		page, err := s.Cards().List(t.Context(), q)
		wantOK(t, "List", err)
		if len(page.Cards) > q.Limit {
			t.Fatalf("a page with limit %d has %d cards", q.Limit, len(page.Cards))
		}
		for _, c := range page.Cards {
			ids = append(ids, c.ID)
		}
		if page.Next == nil {
			return ids
		}
		if len(page.Cards) != q.Limit {
			t.Fatalf("a page before the last has %d cards, want %d", len(page.Cards), q.Limit)
		}
		if last := page.Cards[q.Limit-1].Seq; page.Next.Seq != last {
			t.Fatalf("the next position has seq %d, but the last card of the page has %d", page.Next.Seq, last)
		}
		q.After = *page.Next
	}
}

func testListAll(t *testing.T, s store.Store) {
	putCard(t, s, card("am_1", "cap:x", "cap:y", "word:a"))
	putCard(t, s, card("am_2", "cap:x"))
	putCard(t, s, card("am_3", "cap:y", "cap:x"))
	for _, test := range []struct {
		all  []string
		want []string
	}{
		{nil, []string{"am_1", "am_2", "am_3"}},
		{[]string{"cap:x"}, []string{"am_1", "am_2", "am_3"}},
		{[]string{"cap:x", "cap:y"}, []string{"am_1", "am_3"}},
		{[]string{"cap:x", "cap:x"}, []string{"am_1", "am_2", "am_3"}},
		{[]string{"cap:y", "word:a"}, []string{"am_1"}},
		{[]string{"cap:X"}, nil},
		{[]string{"cap:x", "cap:none"}, nil},
		{[]string{"cap"}, nil},
	} {
		wantSame(t, fmt.Sprintf("List %q", test.all), idsOf(t, s, store.CardQuery{All: test.all}), test.want)
	}
	page, err := s.Cards().List(t.Context(), store.CardQuery{All: []string{"cap:x"}, Limit: 9, Now: t0})
	wantOK(t, "List", err)
	got, err := s.Cards().Get(t.Context(), "am_1", t0)
	wantOK(t, "Get", err)
	got.Terms, got.Counts = nil, nil
	wantSame(t, "listed card", page.Cards[0], got)
}

func testListPages(t *testing.T, s store.Store) {
	var want []string
	for i := range 7 {
		id := fmt.Sprintf("am_%d", 9-i) // not in the order of the ids
		putCard(t, s, card(id, "cap:x"))
		want = append(want, id)
	}
	for limit := 1; limit <= 8; limit++ {
		for _, all := range [][]string{nil, {"cap:x"}} {
			wantSame(t, fmt.Sprintf("pages of %d", limit), idsOf(t, s, store.CardQuery{All: all, Limit: limit}), want)
		}
	}
	for _, limit := range []int{-1, 0, 1001} {
		_, err := s.Cards().List(t.Context(), store.CardQuery{Limit: limit, Now: t0})
		wantMistake(t, fmt.Sprintf("limit %d", limit), err)
	}
	for _, after := range []store.Position{{Seq: math.MaxUint64}, {Tier: 5}, {Tier: 0, Seq: math.MaxUint32}} {
		page, err := s.Cards().List(t.Context(), store.CardQuery{After: after, Limit: 3, Now: t0})
		if err != nil || len(page.Cards) != 0 || page.Next != nil {
			t.Errorf("List after %v = %d cards, next %v, %v", after, len(page.Cards), page.Next, err)
		}
	}
}

// putMany puts cards concurrently, so that they share commits, and returns them in the order of their seq.
func putMany(t *testing.T, s store.Store, cards []store.Card) []store.Card {
	t.Helper()
	stored := make([]store.Card, len(cards))
	next := make(chan int)
	var all sync.WaitGroup
	for range 128 {
		all.Go(func() {
			for i := range next {
				var err error
				if stored[i], err = s.Cards().Put(t.Context(), store.PutCard{Card: cards[i], Now: t0}); err != nil {
					t.Errorf("Put %s = %v", cards[i].ID, err)
				}
			}
		})
	}
	for i := range cards {
		next <- i
	}
	close(next)
	all.Wait()
	slices.SortFunc(stored, func(a, b store.Card) int { return cmp.Compare(a.Seq, b.Seq) })
	return stored
}

// ids returns the ids of the cards that carry all terms.
func ids(cards []store.Card, terms ...string) []string {
	var ids []string
	for _, c := range cards {
		if !slices.ContainsFunc(terms, func(term string) bool { return !slices.Contains(c.Terms, term) }) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// testListTiers lists cards as a search for words does: first by name and by prefix of a name, then by any word and by
// prefix of a word.
func testListTiers(t *testing.T, s store.Store) {
	putCard(t, s, card("am_desc", "cap:x", "word:sarah"))
	putCard(t, s, card("am_name", "cap:x", "word:sarah", "name:sarah"))
	putCard(t, s, card("am_prefix", "cap:x", "word:sarahs", "name:sarahs"))
	putCard(t, s, card("am_other", "cap:x", "word:tom", "name:tom"))
	putCard(t, s, card("am_nocap", "word:sarah", "name:sarah"))
	putCard(t, s, card("am_name2", "cap:x", "word:sarah", "name:sarah", "name:sarahs", "word:sarahs"))
	tiers := []store.Tier{
		{All: []string{"name:sarah"}},
		{Prefix: "name:sarah"},
		{All: []string{"word:sarah"}},
		{Prefix: "word:sarah"},
	}
	want := []string{"am_name", "am_name2", "am_prefix", "am_desc"}
	for limit := 1; limit <= 5; limit++ {
		got := idsOf(t, s, store.CardQuery{All: []string{"cap:x"}, Tiers: tiers, Limit: limit})
		wantSame(t, fmt.Sprintf("tiers in pages of %d", limit), got, want)
	}
	got := idsOf(t, s, store.CardQuery{Tiers: []store.Tier{{All: []string{"cap:x", "name:tom"}}, {}}})
	wantSame(t, "a tier for the rest", got, []string{"am_other", "am_desc", "am_name", "am_prefix", "am_nocap", "am_name2"})
	got = idsOf(t, s, store.CardQuery{Tiers: []store.Tier{{}, {All: []string{"cap:x"}}}, Limit: 10})
	if len(got) != 6 {
		t.Errorf("a query with an empty tier lists %d cards, want 6", len(got))
	}
	got = idsOf(t, s, store.CardQuery{Tiers: []store.Tier{{All: []string{"name:nobody"}}}})
	wantSame(t, "a tier without a match", got, nil)
}

func testListPrefix(t *testing.T, s store.Store) {
	// So many terms begin with word:a that an index keeps their union instead of merging it for each query.
	const n = 1500
	cards := make([]store.Card, n)
	for i := range cards {
		terms := []string{fmt.Sprintf("word:a%d", i), fmt.Sprintf("word:ab%d", i%7), "word:b", "word:a"}
		if i%2 == 0 {
			terms = append(terms, "cap:even")
		}
		cards[i] = card(fmt.Sprintf("am_%04d", i), terms...)
	}
	stored := putMany(t, s, cards)
	all, even := ids(stored), ids(stored, "cap:even")
	for range 2 { // the second time from a cache, if the engine has one
		wantSame(t, "prefix", idsOf(t, s, store.CardQuery{Tiers: []store.Tier{{Prefix: "word:a"}}, Limit: 700}), all)
		wantSame(t, "prefix and term", idsOf(t, s, store.CardQuery{All: []string{"cap:even"}, Tiers: []store.Tier{{Prefix: "word:a"}}, Limit: 100}), even)
	}
	wantSame(t, "prefix of one", idsOf(t, s, store.CardQuery{Tiers: []store.Tier{{Prefix: "word:a1499"}}}), []string{"am_1499"})
	wantSame(t, "prefix of none", idsOf(t, s, store.CardQuery{Tiers: []store.Tier{{Prefix: "word:c"}}}), nil)

	// A cache of the engine must follow these changes.
	c := card("am_0001", "word:b")
	_, err := s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Now: t0})
	wantOK(t, "Put without the terms", err)
	wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_0003", store.Any, t0, nil, t0))
	putCard(t, s, card("am_new", "word:azz"))
	c = card("am_0005", "word:ab1")
	_, err = s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Now: t0})
	wantOK(t, "Put with other terms", err)
	want := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return id == "am_0001" || id == "am_0003" })
	want = append(want, "am_new")
	wantSame(t, "prefix after changes", idsOf(t, s, store.CardQuery{Tiers: []store.Tier{{Prefix: "word:a"}}, Limit: 999}), want)
}

func testListPrefixes(t *testing.T, s store.Store) {
	putCard(t, s, card("am_1", "cap:translate.de", "cap:travel", "word:sarah"))
	putCard(t, s, card("am_2", "cap:translate.fr", "word:sara", "name:sara"))
	putCard(t, s, card("am_3", "cap:travel", "word:sarah"))
	putCard(t, s, card("am_4", "cap:translate", "word:tom", "x:1"))
	for _, test := range []struct {
		all, prefixes []string
		tiers         []store.Tier
		want          []string
	}{
		{nil, []string{"cap:translate"}, nil, []string{"am_1", "am_2", "am_4"}},
		{nil, []string{"cap:translate."}, nil, []string{"am_1", "am_2"}},
		{nil, []string{"cap:translate", "cap:trav"}, nil, []string{"am_1"}},
		{[]string{"word:tom"}, []string{"cap:tra", "x:"}, nil, []string{"am_4"}},
		{nil, []string{"cap:translate"}, []store.Tier{{Prefix: "name:sar"}, {Prefix: "word:sar"}}, []string{"am_2", "am_1"}},
		{nil, []string{"cap:none"}, []store.Tier{{Prefix: "word:sar"}}, nil},
	} {
		for limit := 1; limit < 4; limit++ {
			q := store.CardQuery{All: test.all, Prefixes: test.prefixes, Tiers: test.tiers, Limit: limit}
			wantSame(t, fmt.Sprintf("List %q %q in pages of %d", test.all, test.prefixes, limit), idsOf(t, s, q), test.want)
		}
	}
	for _, bad := range [][]string{{""}, {"a", "b", "c", "d", "e"}} {
		_, err := s.Cards().List(t.Context(), store.CardQuery{Prefixes: bad, Limit: 1, Now: t0})
		wantMistake(t, fmt.Sprintf("prefixes %q", bad), err)
	}
}

func testListMoving(t *testing.T, s store.Store) {
	for i := range 6 {
		putCard(t, s, card(fmt.Sprintf("am_%d", i), "cap:x"))
	}
	q := store.CardQuery{All: []string{"cap:x"}, Limit: 2, Now: t0}
	var got []string
	for i := 0; ; i++ {
		page, err := s.Cards().List(t.Context(), q)
		wantOK(t, "List", err)
		for _, c := range page.Cards {
			got = append(got, c.ID)
		}
		if page.Next == nil {
			break
		}
		q.After = *page.Next
		switch i {
		case 0: // a listed card is withdrawn, and so is the card that the cursor names
			wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_0", store.Any, t0, nil, t0))
			wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_1", store.Any, t0.Add(day), nil, t0))
			putCard(t, s, card("am_6", "cap:x"))
		case 1: // a card that was not listed yet is withdrawn; a listed card is renewed
			wantOK(t, "Withdraw", s.Cards().Withdraw(t.Context(), "am_4", store.Any, t0, nil, t0))
			_, err := s.Cards().Put(t.Context(), store.PutCard{Card: card("am_2", "cap:x"), IfRev: store.Any, Now: t0})
			wantOK(t, "renewal", err)
		}
	}
	wantSame(t, "ids", got, []string{"am_0", "am_1", "am_2", "am_3", "am_5", "am_6"})
}

// testListLong lists cards by two terms. Many cards carry one of the terms, but only a few carry both.
func testListLong(t *testing.T, s store.Store) {
	const n = 6000
	cards := make([]store.Card, n)
	rare := 0
	for i := range cards {
		terms := []string{"word:left"}
		if i%2 == 1 {
			terms = []string{"word:right"}
		}
		if i%1999 == 0 {
			terms = []string{"word:left", "word:right"}
		} else if i%1000 == 1 {
			terms = append(terms, "cap:rare")
			rare++
		}
		cards[i] = card(fmt.Sprintf("am_%04d", i), terms...)
	}
	stored := putMany(t, s, cards)
	both := ids(stored, "word:left", "word:right")
	all := []string{"word:left", "word:right"}
	wantSame(t, "sparse intersection", idsOf(t, s, store.CardQuery{All: all, Limit: 3}), both)
	tiers := []store.Tier{{All: all}, {All: []string{"word:left"}}, {Prefix: "cap:"}}
	got := idsOf(t, s, store.CardQuery{Tiers: tiers, Limit: 1000})
	if want := len(ids(stored, "word:left")) + rare; len(got) != want {
		t.Errorf("tiers list %d cards, want %d", len(got), want)
	}
	seen := make(map[string]bool)
	for _, id := range got {
		if seen[id] {
			t.Errorf("%s is listed twice", id)
		}
		seen[id] = true
	}
	wantSame(t, "first tier", got[:len(both)], both)
}

func testTerms(t *testing.T, s store.Store) {
	putCard(t, s, card("am_1", "cap:a", "cap:b", "word:x"))
	putCard(t, s, card("am_2", "cap:b"))
	c := card("am_3", "cap:b", "cap:c")
	c.Expires = t0
	putCard(t, s, c)
	for _, test := range []struct {
		prefix, after string
		limit         int
		want          []store.TermCount
	}{
		{"cap:", "", 9, []store.TermCount{{Term: "cap:a", Count: 1}, {Term: "cap:b", Count: 2}}},
		{"cap:", "cap:a", 9, []store.TermCount{{Term: "cap:b", Count: 2}}},
		{"cap:", "cap:aa", 9, []store.TermCount{{Term: "cap:b", Count: 2}}},
		{"cap:", "", 1, []store.TermCount{{Term: "cap:a", Count: 1}}},
		{"cap:b", "", 9, []store.TermCount{{Term: "cap:b", Count: 2}}},
		{"", "cap:b", 9, []store.TermCount{{Term: "word:x", Count: 1}}},
		{"none", "", 9, nil},
		{"cap:", "word:x", 9, nil},
	} {
		got, err := s.Cards().Terms(t.Context(), test.prefix, test.after, test.limit, t0)
		wantOK(t, "Terms", err)
		wantSame(t, fmt.Sprintf("Terms(%q, %q, %d)", test.prefix, test.after, test.limit), got, test.want)
	}
	_, err := s.Cards().Terms(t.Context(), "", "", 0, t0)
	wantMistake(t, "limit 0", err)
}
