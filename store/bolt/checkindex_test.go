package bolt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// TestIndexed checks that CheckIndex reports no gap while cards come and go, and reports a real gap.
func TestIndexed(t *testing.T) {
	s := openNew(t, Config{})
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 50 {
				card := store.Card{ID: fmt.Sprintf("am_%d_%d", w, i%10), Terms: []string{"cap:a"}, Expires: now.Add(time.Hour)}
				if _, err := s.Cards().Put(t.Context(), store.PutCard{Card: card, Now: now}); err != nil && !errors.Is(err, store.ErrConflict) {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		if err := s.CheckIndex(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	writers.Wait()
	if _, err := s.Sweep(t.Context(), now.Add(24*time.Hour), 1000); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckIndex(t.Context()); err != nil {
		t.Error(err)
	}
	s.through.Add(^uint64(0)) // as if one change had been missed
	if err := s.CheckIndex(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("with a gap: %v", err)
	}
	s.through.Add(1)
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("writes after it: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.CheckIndex(ctx); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("when closed: %v", err)
	}
}
