package bolt

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// TestSweepLimit: a sweep that ends within a long transcript does not go on with all replay records at once.
func TestSweepLimit(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Now()
	for i := range sweepChunk - 1 {
		c := store.Change{Record: store.Record{NS: "test", Key: fmt.Sprint(i), Body: []byte("{}"), Expires: now.Add(time.Minute)}}
		if err := s.Records().Apply(t.Context(), []store.Change{c}, now); err != nil {
			t.Fatal(err)
		}
	}
	conv := store.Conversation{Key: store.ConvKey{Peer: "am_a", ID: "conv_a"}, Body: []byte("{}"), Updated: now, Expires: now.Add(time.Hour)}
	for i := range 200 {
		id := fmt.Sprint("msg_", i)
		applied, err := s.Steps().Apply(t.Context(), store.Step{
			Conv: &conv, Now: now, Append: []store.Entry{{MessageID: id, At: now, Raw: []byte("{}")}},
			Replay: &store.Replay{Sender: "am_a", MessageID: id, Conv: conv.Key, Status: 200, Answer: []byte("{}"), Expires: now.Add(time.Hour)},
		})
		if err != nil {
			t.Fatal(err)
		}
		conv.Rev = applied.Rev
	}
	if n, err := s.Sweep(t.Context(), now.Add(60*24*time.Hour), sweepChunk); err != nil || n > sweepChunk+16 {
		t.Errorf("Sweep = %d, %v, want at most %d", n, err, sweepChunk+16)
	}
}
