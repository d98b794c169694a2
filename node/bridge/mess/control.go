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
		NS: nsControl, Key: wire.HashOf(string(in.Peer), string(in.MessageID)), Body: body,
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
