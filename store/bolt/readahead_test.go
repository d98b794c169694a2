package bolt

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgress: a long task logs a line every two seconds, and a short one logs nothing.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := newProgress(slog.New(slog.NewTextHandler(&out, nil)), "count the sheep", "sheep", 100)
		for done := range int64(50) {
			p.note(done)
			time.Sleep(100 * time.Millisecond)
		}
		if got := strings.Count(out.String(), "\n"); got != 2 || !strings.Contains(out.String(), `msg="count the sheep" sheep=20 of=100`) {
			t.Errorf("log has %d lines, want 2:\n%s", got, out.String())
		}
	})
}

func TestReadAheadOfNoFile(t *testing.T) {
	if err := readAhead(filepath.Join(t.TempDir(), "missing"), slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}
