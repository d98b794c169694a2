package cardindex

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/agentmesh/agentmesh/store"
)

// TestDropDuringDump: a card that a sweep drops during a dump, and that its owner renews after a restart, is found by
// all of its terms.
func TestDropDuringDump(t *testing.T) {
	const cards, expired, later = 30_000, 100, 200 // the slots alone fill several parts of the dump
	terms := func(s Slot) []string {
		list := []string{"all", fmt.Sprint("card", s)}
		slices.Sort(list)
		return list
	}
	ix := New()
	for s := Slot(1); s <= cards; s++ {
		ix.Put(s, nil, terms(s), later)
	}
	ix.Put(1, terms(1), terms(1), expired)
	var file []byte
	parts := 0
	if err := ix.Dump(func(b []byte) error {
		if parts++; parts == 1 {
			ix.DropExpired(1, terms(1))
		}
		file = append(file, b...)
		return nil
	}); err != nil || parts < 3 {
		t.Fatalf("dump = %v in %d parts", err, parts)
	}
	sum := crc32.Checksum(file, castagnoli)
	file = append(file, byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
	loaded, err := Read(NewReader(bytes.NewReader(file), int64(len(file))))
	if err != nil {
		t.Fatal(err)
	}
	for name, ix := range map[string]*Index{"loaded": loaded, "running": ix} {
		ix.DropExpired(2, terms(2))
		ix.Put(1, terms(1), terms(1), later)
		for _, term := range terms(1) {
			if got := ix.Candidates(nil, store.CardQuery{All: []string{term}}, []store.Tier{{}}, expired, 0, 1); !slices.Equal(got, []Slot{1}) {
				t.Errorf("%s index: cards with term %s begin with %v, want 1", name, term, got)
			}
		}
		if ix.Len() != cards-1 {
			t.Errorf("%s index: %d cards, want all but card 2", name, ix.Len())
		}
	}
}

// TestReadCutFile: a file that was cut at any place is an error.
func TestReadCutFile(t *testing.T) {
	ix := New()
	for s := Slot(1); s <= 2*fewMax; s++ {
		ix.Put(s, nil, []string{"all", fmt.Sprint("card", s%10)}, 200)
	}
	var file []byte
	if err := ix.Dump(func(b []byte) error { file = append(file, b...); return nil }); err != nil {
		t.Fatal(err)
	}
	for n := range len(file) + 4 {
		if _, err := Read(NewReader(bytes.NewReader(file[:min(n, len(file))]), int64(n))); err == nil {
			t.Fatalf("the first %d of %d bytes were read", n, len(file)+4)
		}
	}
}
