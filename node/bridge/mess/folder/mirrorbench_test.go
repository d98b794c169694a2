package folder

import (
	"log/slog"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
)

// BenchmarkMirrorPoll polls 10,000 threads in which nothing has changed.
func BenchmarkMirrorPoll(b *testing.B) {
	for _, state := range []string{"executing", "finished"} {
		b.Run(state, func(b *testing.B) {
			l := newLab(b)
			dir := b.TempDir()
			threadtest.WriteThreads(b, dir, state, 10_000)
			m := NewMirror(l.Exchange, dir, slog.New(slog.DiscardHandler))
			root, err := OpenLayout(dir)
			if err != nil {
				b.Fatal(err)
			}
			defer root.Close()
			if _, err := Import(b.Context(), l.Exchange, slog.New(slog.DiscardHandler), dir, func(int, int) {}); err != nil {
				b.Fatal(err)
			}
			if err := m.read(b.Context(), root); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := m.read(b.Context(), root); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
