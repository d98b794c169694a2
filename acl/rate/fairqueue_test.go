package rate

import (
	"fmt"
	"slices"
	"testing"
)

// TestFairQueue checks that a key that adds items without end does not delay the items of another key.
func TestFairQueue(t *testing.T) {
	const maxItems = 1000
	q := NewFairQueue[string](maxItems)
	take := func() string {
		first := q.First()
		q.RemoveFirst()
		return first
	}
	for n := range 2 * maxItems {
		q.Add("evil", fmt.Sprint("evil", n))
	}
	if q.Len() != maxItems {
		t.Fatalf("%d items wait", q.Len())
	}
	for _, item := range []string{"honest0", "honest1", "other0"} {
		q.Add(item[:len(item)-1], item)
	}
	var got []string
	for range 6 {
		got = append(got, take())
	}
	if want := []string{"evil0", "honest0", "other0", "evil1", "honest1", "evil2"}; !slices.Equal(got, want) {
		t.Errorf("taken in the order %v, want %v", got, want)
	}
	q.Add("honest", "honest2")
	if got := []string{take(), take()}; !slices.Contains(got, "honest2") {
		t.Errorf("later taken %v, want the honest item within two", got)
	}
	for q.Len() > 0 {
		take()
	}
	if len(q.last) != 0 {
		t.Errorf("an empty queue remembers %v", q.last)
	}
}
