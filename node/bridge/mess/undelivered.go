package mess

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What we say too late is refused: who asked has ended the thread meanwhile, or given it to somebody else, and our word and
// theirs met on the way. The refusal ends the conversation, so it ends the thread here as well.

// actionGivenUp marks an aside that is about a message of ours. No message of a peer becomes an aside with it.
const actionGivenUp = "given_up"

// Undelivered implements [bridge.FailureObserver].
func (b *Bridge) Undelivered(ctx context.Context, u bridge.Undelivered) (about string, quiet bool, changes []store.Change) {
	if u.Intent != Intent || b.x.Load() != nil {
		return "", false, nil
	}
	if ref, ok := b.x.OfferedIn(ctx, string(u.To), string(u.ConvID)); ok { // we asked
		t, err := b.x.Read(ctx, ref, time.Now())
		return "MESS " + ref, err == nil && t.Status.Terminal() && tooLate(u), nil
	}
	ref, ok := b.x.RequestIn(string(u.To), string(u.ConvID))
	if !ok {
		return "", false, nil
	}
	if tooLate(u) {
		payload := wire.Obj(wire.TextField("action", actionGivenUp))
		changes = b.Observe(bridge.Inbound{Peer: u.To, Address: u.Address, ConvID: u.ConvID, MessageID: u.MessageID, Intent: Intent, Payload: payload})
		for i := range changes {
			changes[i].Max = 0 // there are as many as we send
		}
	}
	return "MESS " + ref, false, changes
}

// tooLate says whether a peer refused a message because of where the thread, or the conversation, stands with it.
func tooLate(u bridge.Undelivered) bool {
	if u.Code == wire.ConversationClosed {
		return true
	}
	states := []int{http.StatusForbidden, http.StatusNotFound, http.StatusConflict}
	return (u.Code == wire.InvalidMessage || u.Code == wire.Unauthorized) && slices.Contains(states, u.Status)
}

// givenUp ends the thread of a message that came too late.
func (b *Bridge) givenUp(ctx context.Context, key string, a aside) error {
	done := []store.Change{{Record: store.Record{NS: nsAside, Key: key}, IfRev: store.Any, Delete: true}}
	ref, ok := b.x.RequestIn(string(a.From), string(a.Conv))
	if !ok {
		return b.records.Apply(ctx, done, time.Now())
	}
	t, err := b.x.Read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) || err == nil && !t.Status.Open() {
		return b.records.Apply(ctx, done, time.Now())
	}
	if err != nil {
		return err
	}
	return b.x.Cancel(ctx, t, "agentmesh", "too late: who asked has ended it, or given it to somebody else", done)
}
