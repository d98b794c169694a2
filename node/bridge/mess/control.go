package mess

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// A control message is a message of a peer that the node passes to no handler: it closes the conversation, or reports
// that the peer asks its owner first. The bridge stores it in the transaction that receives it, and applies it to the
// thread soon after.

// nsControl is the namespace of stored control messages.
const nsControl = "mess/aside"

// maxControls bounds the stored control messages of one peer. The peer may send a refused one again later.
const (
	maxControls     = 200
	controlLifetime = 7 * 24 * time.Hour
)

// controlMessage is the stored form of a control message.
type controlMessage struct {
	From    wire.AgentID        `json:"from"`
	Address string              `json:"address,omitempty"`
	Conv    wire.ConversationID `json:"conv"`
	ID      wire.MessageID      `json:"id"`
	Payload wire.Value          `json:"payload"`
}

// Observe implements [bridge.Observer]. It stores control messages.
func (b *Bridge) Observe(in bridge.Inbound) []store.Change {
	if in.Intent != Intent {
		return nil
	}
	body := wire.MustMarshal(controlMessage{From: in.Peer, Address: in.Address, Conv: in.ConvID, ID: in.MessageID, Payload: in.Payload})
	return []store.Change{{IfRev: store.Any, Max: maxControls, Record: store.Record{
		NS: nsControl, Key: exchange.IDKey(string(in.Peer), string(in.MessageID)), Body: body,
		Terms: []string{string(in.Peer)}, Party: string(in.Peer), Due: store.DueNow, Expires: time.Now().Add(controlLifetime),
	}}}
}

// workControl applies a control message. If that fails, the worker tries again.
func (b *Bridge) workControl(ctx context.Context, rec store.Record, _ bool) (later work.Later, err error) {
	var m controlMessage
	_ = json.Unmarshal(rec.Body, &m) // what cannot be decoded has no ID
	return later, b.applyControl(ctx, rec.Key, m)
}

// applyControl applies and removes a stored control message. If a later attempt may succeed, it only returns an error.
func (b *Bridge) applyControl(ctx context.Context, key string, m controlMessage) error {
	if m.ID != "" { // otherwise the stored message could not be decoded and is only removed
		payload, err := b.controlPayload(ctx, m)
		if err == nil && !payload.IsNull() {
			_, err = b.Receive(ctx, bridge.Call{From: m.From, Address: m.Address, Conv: m.Conv, ID: m.ID, Payload: payload})
		}
		if e, refused := errors.AsType[*wire.Error](err); err != nil && (!refused || e.Retry) {
			return err
		} else if refused {
			b.log.Info("a control message was refused", "peer", m.From, "error", e.Message)
		}
	}
	return b.records.Apply(ctx, []store.Change{{Record: store.Record{NS: nsControl, Key: key}, IfRev: store.Any, Delete: true}}, time.Now())
}

// controlPayload returns the MESS payload of a control message. If the message carries a MESS list, the payload is that
// list without its requests. If no entries remain, the payload is a status that says what the action of the message
// means for the thread that we sent to the peer (MESS section 12). The payload is null if there is nothing to apply.
func (b *Bridge) controlPayload(ctx context.Context, m controlMessage) (wire.Value, error) {
	if list, ok := m.Payload.Get("mess"); ok && list.Kind() == wire.Array {
		entries, err := thread.FromTree(list)
		if err != nil {
			return wire.Value{}, err
		}
		// a control message must not open a thread
		entries = slices.DeleteFunc(entries, func(e thread.Entry) bool { return e.Type == "request" })
		for i, e := range entries { // nothing can continue a closed conversation
			if e.Successor() != "" {
				entries[i].Body = e.Body.Without("ref")
			}
		}
		if len(entries) > 0 {
			return m.Payload.With("mess", entries.Tree()), nil
		}
	}
	ref, err := b.x.OfferedIn(ctx, string(m.From), string(m.Conv))
	if ref == "" {
		return wire.Value{}, err
	}
	t, err := b.x.Read(ctx, ref, time.Now())
	if err != nil {
		return wire.Value{}, exchange.IgnoreMissing(err)
	}
	isTime := func(s string) bool { _, ok := thread.TimeOrSpan(s, time.Now()); return ok }
	code, fields := thread.Held, []wire.Member{wire.TextField("reason", m.Payload.GetStr("reason"))}
	switch eta := m.Payload.GetStr("estimated_response"); {
	case m.Payload.GetStr("action") == wire.ActionPending && t.Holder != "":
		return wire.Value{}, nil // the message is about our answer; a holder that waits sends a status instead
	case m.Payload.GetStr("action") != wire.ActionPending:
		code = closeCode(t, string(m.From), m.Payload)
	case isTime(eta):
		fields = append(fields, wire.TextField("resume_eta", eta))
	}
	if code == "" {
		return wire.Value{}, nil
	}
	return wire.Obj(
		wire.TextField("action", m.Payload.GetStr("action")),
		wire.Field("mess", thread.Block{thread.NewStatus(ref, code, fields...)}.Tree())), nil
}

// closeCode returns the state to which a close without a MESS list moves a thread that was offered to the peer. It
// returns "" if the thread has ended already.
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
