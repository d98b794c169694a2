//go:build slow

package bolt

import (
	"path/filepath"
	"testing"
	"time"
)

func TestSnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	s := open(t, path, Config{})
	mix := newCardMix(now)
	mix.fill(t, s, 2000)
	at := now
	for round := range 4 {
		churn(t, s, mix, at, 40)
		wantBuilt(t, s, at)
		if round%2 == 0 {
			if err := s.writeSnapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		at = at.Add(20 * time.Hour)
		churn(t, s, mix, at, 40)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s = open(t, path, Config{}); s.through.Load() == 0 {
			t.Error("the snapshot was not used")
		}
		wantBuilt(t, s, at)
	}
}
