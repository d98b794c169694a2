package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory"
)

// TestFillBigBesideOtherCards: other cards in a kept database do not count as cards of the corpus.
func TestFillBigBesideOtherCards(t *testing.T) {
	dir, p := filepath.Join(t.TempDir(), "data"), (*progress)(nil)
	if err := fillBig(t.Context(), p, dir, 3); err != nil {
		t.Fatal(err)
	}
	b, err := openBig(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	other := directory.Submission{Bearer: benchCredential, Body: func() ([]byte, error) { return newCorpus("late").card(0), nil }}
	if _, err := b.registry.Register(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fillBig(t.Context(), p, dir, 5); err != nil {
		t.Fatal(err)
	}
	if b, err = openBig(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i := range 5 {
		if _, err := b.Cards().Get(t.Context(), string(b.corpus.id(i)), time.Now()); err != nil {
			t.Errorf("card %d: %v", i, err)
		}
	}
}
