package cardindex

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestDict adds and removes slots at random and compares the dictionary with a map.
func TestDict(t *testing.T) {
	var d dict
	want := make(map[string]map[Slot]bool)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 40_000 {
		term, s := fmt.Sprintf("t%d", rng.IntN(2000)), Slot(rng.IntN(600))
		if rng.IntN(20) == 0 {
			term = "common" // long enough to become a bitmap
		}
		if rng.IntN(5) < 3 {
			if d.add(term, s); want[term] == nil {
				want[term] = make(map[Slot]bool)
			}
			want[term][s] = true
		} else if d.remove(term, s); want[term] != nil {
			if delete(want[term], s); len(want[term]) == 0 {
				delete(want, term)
			}
		}
	}
	terms := slices.Sorted(maps.Keys(want))
	var got []string
	for term, list := range d.from("") {
		got = append(got, term)
		slots := slices.Sorted(maps.Keys(want[term]))
		if !slices.Equal(list.bitmap().ToArray(), slots) || list.len() != len(slots) {
			t.Fatalf("list of %s differs", term)
		}
		for _, from := range []Slot{0, 300, 599, 700} {
			i, exact := slices.BinarySearch(slots, from)
			var w walker
			w.start(list, from)
			if s, ok := w.next(); ok != (i < len(slots)) || ok && s != slots[i] {
				t.Fatalf("walking %s from %d starts at %d, %v", term, from, s, ok)
			}
			if list.contains(from) != exact {
				t.Fatalf("%s contains %d: %v", term, from, !exact)
			}
		}
	}
	if !slices.Equal(got, terms) {
		t.Fatalf("dictionary has %d terms in order %v, want %d", len(got), slices.IsSorted(got), len(terms))
	}
	if d.get("common") == nil || d.get("common").many == nil {
		t.Error("the common term is not a bitmap")
	}
	for _, start := range []string{"", "t5", "t1999x", "zz"} {
		i, _ := slices.BinarySearch(terms, start)
		n := 0
		for range d.from(start) {
			n++
		}
		if n != len(terms)-i {
			t.Errorf("%d terms from %q, want %d", n, start, len(terms)-i)
		}
	}
}
