//go:build slow

package node_test

import (
	"testing"
	"time"
)

// TestSlowTurns: the answers of slow hooks are messages of their own, which stop at the same bound.
func TestSlowTurns(t *testing.T) {
	t.Parallel() // it mostly waits
	bounds := wide
	bounds.Conversation = 2
	stopAtBound(t, 2500*time.Millisecond, bounds, 2, "autonomy.conversation")
}
