package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestUnavailable: a fault that may pass becomes wire.ErrUnavailable, because senders give up after an internal error
// (AM-47).
func TestUnavailable(t *testing.T) {
	for cause, want := range map[error]*wire.Error{
		store.ErrUnavailable:     wire.ErrUnavailable,
		store.ErrConflict:        wire.ErrUnavailable,
		store.ErrQuota:           wire.ErrUnavailable, // the outbox is full
		context.Canceled:         wire.ErrUnavailable, // the process stops
		context.DeadlineExceeded: wire.ErrUnavailable,
		store.ErrNotFound:        wire.ErrInternal,
		wire.ErrIntent:           wire.ErrIntent,
	} {
		if got := toWireError(fmt.Errorf("apply: %w", cause)); !errors.Is(got, want) {
			t.Errorf("toWireError(%v) = %v, want %v", cause, got, want)
		}
	}
}
