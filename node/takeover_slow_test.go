//go:build slow

package node_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestFollowerBeforeItRuns: a process that found the lease taken leaves hooks to the holder even before it runs, and
// never takes the duties over.
func TestFollowerBeforeItRuns(t *testing.T) {
	t.Parallel()
	runs := &counted{}
	configure := func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Open
		cfg.Routes = []node.Route{{Pattern: "mesh.*", Name: "counted", Handler: runs}}
	}
	ps := startProcesses(t, 1, time.Millisecond, configure)
	handle := ps.db.Handle("follower")
	session := store.NewSession(handle.Leases(), slog.New(slog.DiscardHandler))
	if _, _, err := session.Claim(t.Context(), node.Lease); !errors.Is(err, store.ErrLeaseTaken) {
		t.Fatalf("Claim = %v, want ErrLeaseTaken", err)
	}
	follower := ps.mesh.Process("sarah", handle, ps.all[0].Member, func(cfg *node.Config) {
		configure(cfg)
		cfg.Session, cfg.Follower = session, true
	})
	chris := ps.mesh.Stranger("chris")
	must(t, follower.Post(chris.Sign(chris.Draft(follower.ID(), wire.Deliver, hello))), http.StatusAccepted)
	waitFor(t, "the holder has not run the hook", func() bool {
		items, _, err := follower.Inbox(t.Context(), owner.ItemAnswered, "", 10)
		return err == nil && len(items) == 1
	})
	runs.mu.Lock()
	defer runs.mu.Unlock()
	if len(runs.runs) != 1 {
		t.Errorf("the hook ran for %d messages, want 1", len(runs.runs))
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- follower.Run(ctx) }()
	ps.all[0].kill()
	time.Sleep(2 * processTTL)
	if held, err := ps.db.Leases().List(t.Context()); err != nil || len(held) > 0 {
		t.Errorf("leases = %v, %v: the follower has the duties", held, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
