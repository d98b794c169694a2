package listing

import (
	"testing"
	"time"
)

func TestWhenEndpointsAreDue(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		h           Head
		least, most time.Duration
	}{
		{Head{Probed: now}, 21 * time.Hour, 24 * time.Hour},
		{Head{Probed: now, Misses: 1}, time.Hour, time.Hour},
		{Head{Probed: now, Misses: 2}, 4 * time.Hour, 4 * time.Hour},
		{Head{Probed: now, Misses: 3}, 24 * time.Hour, 24 * time.Hour},
	} {
		if got := tt.h.nextProbe("am_1").Sub(now); got < tt.least || got > tt.most {
			t.Errorf("%+v is due after %v, want %v to %v", tt.h, got, tt.least, tt.most)
		}
	}
	if got := (Head{}).nextProbe("am_1"); !got.IsZero() {
		t.Errorf("a card that was never probed is due at %v", got)
	}
}
