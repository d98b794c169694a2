package local_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store/local"
)

// TestAcquireAgain: a handle that acquires a lease that it holds has it for a whole TTL from then, because that is what
// the handle counts on.
func TestAcquireAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := &local.Leases{TTL: time.Minute, Floor: func(context.Context) (uint64, error) { return 0, nil }}
		h := leases.Handle("a")
		first, err := h.Acquire(t.Context(), "node")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		again, err := h.Acquire(t.Context(), "node")
		if err != nil || again != first {
			t.Fatalf("Acquire = %v, %v", again, err)
		}
		time.Sleep(50 * time.Second)
		if err := leases.Check(&again, time.Now()); err != nil {
			t.Error(err)
		}
	})
}
