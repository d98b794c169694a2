package link

import (
	"context"
	"errors"
	"net"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestTestWaitsForTheLink: the test of a link never joins while the link itself joins, because the second connection
// under a name ends the first (MEW-J5).
func TestTestWaitsForTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dialing, dials atomic.Int32
		file, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mew.db"), bolt.Config{})
		if err != nil {
			t.Fatal(err)
		}
		db := store.Observe(file)
		defer db.Close()
		b, err := New(Config{
			Links:   []bridge.Link{{Name: "lab", Kind: Kind, URL: "wss://lab.example", Space: "lab"}},
			Tokens:  map[string]client.Credential{"lab": "token"},
			Records: db.Records(), Steps: db.Steps(),
			Dial: func(context.Context, *url.URL) (net.Conn, error) {
				dials.Add(1)
				if dialing.Add(1) > 1 {
					t.Error("the link and its test join at the same time")
				}
				time.Sleep(5 * time.Second)
				dialing.Add(-1)
				return nil, errors.New("nobody there")
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		time.Sleep(time.Second)
		for range 5 {
			if err := b.Test(ctx, "lab"); err == nil {
				t.Error("the test succeeds")
			}
		}
		cancel()
		if err := <-done; err != nil || dials.Load() < 6 {
			t.Errorf("Run = %v after %d attempts", err, dials.Load())
		}
	})
}
