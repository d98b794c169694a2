//go:build slow && !race

package bolt

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestFlippedKeys changes the lowest bit of the last byte of every key of a database with many pages. Some keys are
// then in order, but below the first key of their page, which makes bbolt's scan panic in its own goroutine.
func TestFlippedKeys(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys.db")
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	var changes []store.Change
	for i := range 80 { // six leaves
		changes = append(changes, store.Change{Record: store.Record{
			NS: "n", Key: fmt.Sprintf("k%03d1", i), Body: storetest.Text(i, 300), Expires: now.Add(time.Hour),
		}})
	}
	if err := errors.Join(s.Records().Apply(t.Context(), changes, now), s.Close()); err != nil {
		t.Fatal(err)
	}
	whole := readFile(t, path)
	for _, r := range storedRows(t, path) {
		if r.bucket != "records" {
			continue
		}
		path := write(t, whole)
		flip(t, path, r, 8*(len(r.key)-1))
		if err := Check(t.Context(), path); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "of records") {
			t.Errorf("Check after a change of key %q = %v, want ErrDamaged", r.key, err)
		}
		if s, err := Open(t.Context(), path, Config{}); !errors.Is(err, ErrDamaged) {
			t.Errorf("Open after a change of key %q = %v, want ErrDamaged", r.key, errors.Join(err, s.Close()))
		}
	}
}
