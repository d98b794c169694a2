package mess

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// threadFolder fills a directory with so many thread folders in one state.
func threadFolder(tb testing.TB, dir, state string, files int) {
	tb.Helper()
	for i := range files {
		ref := fmt.Sprintf("2026-02-01-%05d", i)
		at := filepath.Join(dir, "exchange", "state="+state, ref)
		if err := os.MkdirAll(at, 0o700); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "000-"+ref+thread.FileSuffix), []byte(strings.ReplaceAll(sample, "2026-02-01-001-a7xk", ref)), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkMirrorPoll looks at 10,000 threads in which nothing has changed.
func BenchmarkMirrorPoll(b *testing.B) {
	for _, state := range []string{"executing", "finished"} {
		b.Run(state, func(b *testing.B) {
			l := newLab(b)
			dir := b.TempDir()
			threadFolder(b, dir, state, 10_000)
			m := newMirror(l.Exchange, dir, slog.New(slog.DiscardHandler))
			root, err := openLayout(dir)
			if err != nil {
				b.Fatal(err)
			}
			defer root.Close()
			if _, err := l.ImportDirectory(b.Context(), dir, func(int, int) {}); err != nil {
				b.Fatal(err)
			}
			if err := m.read(b.Context(), root, true); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := m.read(b.Context(), root, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDirectoryLinkCreate makes a thread in a directory of 10,000.
func BenchmarkDirectoryLinkCreate(b *testing.B) {
	dir := b.TempDir()
	threadFolder(b, dir, "received", 10_000)
	r := &dirRemote{dir: dir, name: "us"}
	n := 0
	for b.Loop() {
		n++
		if _, err := r.create(b.Context(), "", mustParse(b, fmt.Sprintf("- request: {id: a%d, intent: look}", n))[0].Body); err != nil {
			b.Fatal(err)
		}
	}
}
