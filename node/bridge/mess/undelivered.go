package mess

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A peer refuses our message if it comes too late, because the requester has ended the thread or given it to somebody
// else. The refusal ends the conversation, so we end our copy of the thread too.

// Undelivered implements [bridge.FailureObserver]. subject is what the notice to the owner names. If quiet is true, the
// owner gets no notice.
func (b *Bridge) Undelivered(ctx context.Context, u bridge.Undelivered) (subject string, quiet bool, changes []store.Change) {
	if u.Intent != Intent {
		return "", false, nil
	}
	if err := b.x.Load(); err != nil {
		b.log.Error("thread of a refused message not ended; it stays open", "err", err)
		return "", false, nil
	}
	if ref, _ := b.x.OfferedIn(ctx, string(u.To), string(u.ConvID)); ref != "" { // we opened the conversation, so we are the requester
		t, err := b.x.Read(ctx, ref, time.Now())
		return "MESS " + ref, err == nil && t.Status.Terminal() && isTooLate(u), nil
	}
	ref, ok := b.x.RequestIn(string(u.To), string(u.ConvID))
	if !ok {
		return "", false, nil
	}
	if isTooLate(u) {
		if err := b.cancelTooLate(ctx, ref); err != nil {
			b.log.Error("thread of a refused message not ended; it stays open", "err", err)
		}
	}
	return "MESS " + ref, false, nil
}

// isTooLate reports whether a peer refused a message because of the state of the thread or the conversation there.
func isTooLate(u bridge.Undelivered) bool {
	if u.Code == wire.ConversationClosed {
		return true
	}
	statuses := []int{http.StatusForbidden, http.StatusNotFound, http.StatusConflict}
	return (u.Code == wire.InvalidMessage || u.Code == wire.Unauthorized) && slices.Contains(statuses, u.Status)
}

// cancelTooLate cancels our copy of a thread after its requester refused a message as too late. If the node repeats the
// step that gives the message up, the thread has ended already.
func (b *Bridge) cancelTooLate(ctx context.Context, ref string) error {
	t, err := b.x.Read(ctx, ref, time.Now())
	if err != nil || !t.Status.Open() {
		return exchange.IgnoreMissing(err)
	}
	return b.x.Cancel(ctx, t, "agentmesh", "too late: the requester has ended it, or given it to somebody else", nil)
}
