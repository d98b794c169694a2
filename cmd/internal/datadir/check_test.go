package datadir

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/store"
)

// damagedSteps has a conversation that cannot be read, and a damaged page after it.
type damagedSteps struct{ store.Steps }

func (damagedSteps) Conversation(context.Context, store.ConvKey, time.Time) (store.Conversation, error) {
	return store.Conversation{}, errors.New("its row is damaged")
}

func (damagedSteps) Conversations(_ context.Context, _ string, before uint64, _ int, _ time.Time) (store.ConvPage, error) {
	if before > 0 {
		return store.ConvPage{}, errors.New("the page is damaged")
	}
	return store.ConvPage{Conversations: []store.Conversation{{Key: store.ConvKey{Peer: "am_a", ID: "conv_1"}}}, Next: 1}, nil
}

// TestFaultsBeforeDamage: check reports the faults that it found before it could read no further.
func TestFaultsBeforeDamage(t *testing.T) {
	_, err := verifyTranscripts(t.Context(), damagedSteps{})
	goldentest.Refuses(t, "verify", err)
}
