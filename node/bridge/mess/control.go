package mess

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A control message is a message of a peer that no handler sees: it closes the conversation, or reports that the peer's
// owner is asked first. It is stored in the unit that receives it, and applied to the thread soon after.

// nsControl is the namespace of stored control messages.
const nsControl = "mess/aside"

// Bounds on the control messages of one peer that wait: their number (a further close is refused for now), and how long
// they are kept.
const (
	maxControls     = 200
	controlLifetime = 7 * 24 * time.Hour
)

// Retries of control messages that cannot be applied: with growing pauses, and at most maxControlFailures of one peer
// in a round. Notices wait for the round.
const (
	minControlRetry    = time.Second
	maxControlRetry    = 10 * time.Minute
	maxControlFailures = 10
)

// controlMessage is the stored form of a control message.
type controlMessage struct {
	From    wire.AgentID        `json:"from"`
	Address string              `json:"address,omitempty"`
	Conv    wire.ConversationID `json:"conv"`
	ID      wire.MessageID      `json:"id"`
	Payload wire.Value          `json:"payload"`
}

func (a controlMessage) toCall() bridge.Call {
	return bridge.Call{From: a.From, Address: a.Address, Conv: a.Conv, ID: a.ID, Payload: a.Payload}
}

// storedControl is a control message with its retry state.
type storedControl struct {
	controlMessage
	Pause time.Duration `json:"pause,omitempty"` // since the last attempt
	Again time.Time     `json:"again,omitzero"`
}

// Observe implements [bridge.Observer]. It stores control messages.
func (b *Bridge) Observe(in bridge.Inbound) []store.Change {
	if in.Intent != Intent {
		return nil
	}
	body := thread.Encode(controlMessage{From: in.Peer, Address: in.Address, Conv: in.ConvID, ID: in.MessageID, Payload: in.Payload})
	return []store.Change{{IfRev: store.Any, Max: maxControls, Record: store.Record{
		NS: nsControl, Key: exchange.IDKey(string(in.Peer), string(in.MessageID)), Body: body,
		Terms: []string{string(in.Peer)}, Expires: time.Now().Add(controlLifetime),
	}}}
}

// OnCommit implements [bridge.Observer]. It wakes the notifier for new control messages, but not for those that the
// notifier itself postpones or removes.
func (b *Bridge) OnCommit(changes []store.Change) {
	isNew := func(c store.Change) bool { return c.Record.NS == nsControl && c.IfRev == store.Any && !c.Delete }
	if slices.ContainsFunc(changes, isNew) {
		b.x.WakeNotifier()
	}
}

// applyControls applies the stored control messages. One that cannot be applied now waits, and delays no other:
// otherwise a peer over its limit would delay everybody.
func (b *Bridge) applyControls(ctx context.Context) (waits bool, err error) {
	failed := map[wire.AgentID]int{}
	for after := ""; ; {
		page, err := b.records.List(ctx, nsControl, "", after, 100, time.Now())
		if err != nil {
			return waits, err
		}
		for _, rec := range page.Records {
			var a storedControl
			if err := json.Unmarshal(rec.Body, &a); err == nil && (failed[a.From] >= maxControlFailures || time.Now().Before(a.Again)) {
				waits = true
				continue
			}
			err := b.applyControl(ctx, rec.Key, a.controlMessage)
			if ctx.Err() != nil {
				return waits, ctx.Err()
			}
			if err != nil {
				b.log.Info("a control message waits", "error", err)
				waits = true
				failed[a.From]++
				if err := b.postponeControl(ctx, rec, a); err != nil {
					return waits, err
				}
			}
		}
		if after = page.Next; after == "" {
			return waits, nil
		}
	}
}

// postponeControl stores when a control message is tried again.
func (b *Bridge) postponeControl(ctx context.Context, rec store.Record, a storedControl) error {
	a.Pause = min(max(2*a.Pause, minControlRetry), maxControlRetry)
	a.Again = time.Now().Add(a.Pause)
	rev := rec.Rev
	rec.Body = thread.Encode(a)
	err := b.records.Apply(ctx, []store.Change{{Record: rec, IfRev: rev}}, time.Now())
	if errors.Is(err, store.ErrConflict) {
		return nil // the peer has sent it again meanwhile
	}
	return err
}

func (b *Bridge) applyControl(ctx context.Context, key string, a controlMessage) error {
	if a.Payload.GetStr("action") == actionTooLate {
		return b.cancelTooLate(ctx, key, a)
	}
	if a.ID != "" {
		in, err := a.toCall(), error(nil)
		if in.Payload, err = b.controlPayload(ctx, a); err == nil && !in.Payload.IsNull() {
			_, err = b.Receive(ctx, in)
		}
		if e, refused := errors.AsType[*wire.Error](err); err != nil && (!refused || e.Retry) {
			return err
		} else if refused {
			b.log.Info("a control message was refused", "peer", a.From, "error", e.Message)
		}
	}
	return b.records.Apply(ctx, []store.Change{{Record: store.Record{NS: nsControl, Key: key}, IfRev: store.Any, Delete: true}}, time.Now())
}

// controlPayload returns the MESS payload of a control message: the list that it carries, without entries that open
// threads; or else a status with the meaning of its action for the thread that we sent (MESS section 12). It is null if
// there is nothing to apply.
func (b *Bridge) controlPayload(ctx context.Context, a controlMessage) (wire.Value, error) {
	if list, ok := a.Payload.Get("mess"); ok && list.Kind() == wire.Array {
		entries, err := thread.FromTree(list)
		if err != nil {
			return wire.Value{}, err
		}
		// The sender has no permission to open a thread.
		entries = slices.DeleteFunc(entries, func(e thread.Entry) bool { return e.Type == "request" })
		for i, e := range entries { // a closed conversation has no successor
			if e.Successor() != "" {
				entries[i].Body = e.Body.Without("ref")
			}
		}
		if len(entries) > 0 {
			return a.Payload.With("mess", entries.Tree()), nil
		}
	}
	ref, ok := b.x.OfferedIn(ctx, string(a.From), string(a.Conv))
	if !ok {
		return wire.Value{}, nil
	}
	t, err := b.x.Read(ctx, ref, time.Now())
	if err != nil {
		return wire.Value{}, exchange.IgnoreMissing(err)
	}
	reason := wire.TextField("reason", a.Payload.GetStr("reason"))
	whenever := func(s string) bool { _, ok := thread.TimeOrSpan(s, time.Now()); return ok }
	code, more := thread.Held, []wire.Member{reason}
	switch eta := a.Payload.GetStr("estimated_response"); {
	case a.Payload.GetStr("action") == wire.ActionPending && t.Holder != "":
		return wire.Value{}, nil // it is about an answer of ours; a holder reports itself when it waits
	case a.Payload.GetStr("action") != wire.ActionPending:
		code = closeCode(t, string(a.From), a.Payload)
	case whenever(eta):
		more = append(more, wire.TextField("resume_eta", eta))
	}
	if code == "" {
		return wire.Value{}, nil
	}
	body := wire.Obj(append([]wire.Member{{Key: "re", Value: wire.Text(ref)}, {Key: "code", Value: wire.Text(string(code))}}, more...)...)
	return wire.Obj(
		wire.TextField("action", a.Payload.GetStr("action")),
		wire.Field("mess", thread.Block{{Type: "status", Body: body}}.Tree())), nil
}

// closeCode returns the state that a close without a block means for a thread that was offered to the peer, or "".
func closeCode(t *thread.Thread, peer string, payload wire.Value) thread.Code {
	switch {
	case !t.Status.Open():
		return ""
	case t.Holder != peer, payload.GetStr("reason") == string(wire.OwnerRejected):
		return thread.Declined
	case payload.GetStr("status") == "completed":
		return thread.Completed
	}
	return thread.Failed
}
