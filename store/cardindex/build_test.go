package cardindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestJoin checks that an index made from parts is the one to which the cards were added one by one.
func TestJoin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const cards = 6000
	want, parts := New(), make([]Part, 4) // the third part stays empty
	for s := Slot(1); s <= cards; s++ {
		terms := []string{"all"}
		for range rng.IntN(8) {
			terms = append(terms, fmt.Sprint("t", rng.IntN(4000)))
		}
		slices.Sort(terms)
		terms = slices.Compact(terms)
		if s%100 == 0 {
			terms = nil
		}
		want.Put(s, nil, terms, int64(s))
		var row [][]byte
		for _, term := range terms {
			row = append(row, []byte(term))
		}
		parts[[]int{0, 1, 1, 3}[4*(s-1)/cards]].Add(s, int64(s), row)
		for _, term := range row {
			clear(term) // Add has copied it
		}
	}
	got := Join(parts)
	if got.Len() != want.Len() {
		t.Errorf("the index has %d cards, want %d", got.Len(), want.Len())
	}
	terms, wantTerms := slices.Collect(got.TermsAfter("", "")), slices.Collect(want.TermsAfter("", ""))
	if !slices.Equal(terms, wantTerms) {
		t.Fatalf("%d terms, want %d", len(terms), len(wantTerms))
	}
	for _, term := range terms {
		if a, b := got.terms.get(term).bitmap(), want.terms.get(term).bitmap(); !a.Equals(b) {
			t.Errorf("%s lists %v, want %v", term, a, b)
		}
	}
	for s, expires := range got.Ends {
		if expires != int64(s) {
			t.Errorf("card %d expires at %d", s, expires)
		}
	}
	if empty := Join(make([]Part, 2)); empty.Len() != 0 || len(slices.Collect(empty.TermsAfter("", ""))) != 0 {
		t.Error("an index of nothing has something")
	}
}
