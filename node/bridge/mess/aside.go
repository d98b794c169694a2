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

// What a peer says that no handler gets to see: it closes the conversation, or its owner is asked first. Both are kept in
// the step that takes them in, and applied to the thread soon after.

// nsAside holds them meanwhile.
const nsAside = "mess/aside"

// What one peer says aside and cannot be applied yet: how much may wait (its next close is told to come again), and how
// long before it is given up.
const (
	maxAsides = 200
	keepAside = 7 * 24 * time.Hour
)

// How what cannot be applied is tried again: ever more seldom, and only so much of one peer in one round. Notices wait for
// the round.
const (
	firstAside  = time.Second
	lastAside   = 10 * time.Minute
	asideFailed = 10
)

type aside struct {
	From    wire.AgentID        `json:"from"`
	Address string              `json:"address,omitempty"`
	Conv    wire.ConversationID `json:"conv"`
	ID      wire.MessageID      `json:"id"`
	Payload wire.Value          `json:"payload"`
}

func (a aside) call() bridge.Call {
	return bridge.Call{From: a.From, Address: a.Address, Conv: a.Conv, ID: a.ID, Payload: a.Payload}
}

// waitingAside is one as it is kept.
type waitingAside struct {
	aside
	Pause time.Duration `json:"pause,omitempty"` // since it was tried last
	Again time.Time     `json:"again,omitzero"`
}

// Observe implements [bridge.Observer].
func (b *Bridge) Observe(in bridge.Inbound) []store.Change {
	if in.Intent != Intent {
		return nil
	}
	body := thread.Encode(aside{From: in.Peer, Address: in.Address, Conv: in.ConvID, ID: in.MessageID, Payload: in.Payload})
	return []store.Change{{IfRev: store.Any, Max: maxAsides, Record: store.Record{
		NS: nsAside, Key: exchange.IDKey(string(in.Peer), string(in.MessageID)), Body: body,
		Terms: []string{string(in.Peer)}, Expires: time.Now().Add(keepAside),
	}}}
}

// OnCommit implements [bridge.Observer]. It does not wake the courier for what the courier itself puts off or removes.
func (b *Bridge) OnCommit(changes []store.Change) {
	said := func(c store.Change) bool { return c.Record.NS == nsAside && c.IfRev == store.Any && !c.Delete }
	if slices.ContainsFunc(changes, said) {
		b.x.WakeTeller()
	}
}

// takeAsides applies what was said. What cannot be applied now waits, and nothing for it: a peer that asks for more than
// it may would have all others wait.
func (b *Bridge) takeAsides(ctx context.Context) (waits bool, err error) {
	failed := map[wire.AgentID]int{}
	for after := ""; ; {
		page, err := b.records.List(ctx, nsAside, "", after, 100, time.Now())
		if err != nil {
			return waits, err
		}
		for _, rec := range page.Records {
			var a waitingAside
			if err := json.Unmarshal(rec.Body, &a); err == nil && (failed[a.From] >= asideFailed || time.Now().Before(a.Again)) {
				waits = true
				continue
			}
			err := b.takeAside(ctx, rec.Key, a.aside)
			if ctx.Err() != nil {
				return waits, ctx.Err()
			}
			if err != nil {
				b.log.Info("what a peer said aside waits", "error", err)
				waits = true
				failed[a.From]++
				if err := b.putOff(ctx, rec, a); err != nil {
					return waits, err
				}
			}
		}
		if after = page.Next; after == "" {
			return waits, nil
		}
	}
}

// putOff notes when one is tried again.
func (b *Bridge) putOff(ctx context.Context, rec store.Record, a waitingAside) error {
	a.Pause = min(max(2*a.Pause, firstAside), lastAside)
	a.Again = time.Now().Add(a.Pause)
	rev := rec.Rev
	rec.Body = thread.Encode(a)
	err := b.records.Apply(ctx, []store.Change{{Record: rec, IfRev: rev}}, time.Now())
	if errors.Is(err, store.ErrConflict) {
		return nil // it was said again meanwhile
	}
	return err
}

func (b *Bridge) takeAside(ctx context.Context, key string, a aside) error {
	if a.Payload.GetStr("action") == actionGivenUp {
		return b.givenUp(ctx, key, a)
	}
	if a.ID != "" {
		in, err := a.call(), error(nil)
		if in.Payload, err = b.spelled(ctx, a); err == nil && !in.Payload.IsNull() {
			_, err = b.Receive(ctx, in)
		}
		if e, refused := errors.AsType[*wire.Error](err); err != nil && (!refused || e.Retry) {
			return err
		} else if refused {
			b.log.Info("what a peer said aside is not allowed", "peer", a.From, "error", e.Message)
		}
	}
	return b.records.Apply(ctx, []store.Change{{Record: store.Record{NS: nsAside, Key: key}, IfRev: store.Any, Delete: true}}, time.Now())
}

// spelled is an aside as a MESS list: the one that it carries, without what opens threads, or what its action means for
// the thread that we sent there (MESS section 12). It is null where that is nothing.
func (b *Bridge) spelled(ctx context.Context, a aside) (wire.Value, error) {
	if list, ok := a.Payload.Get("mess"); ok && list.Kind() == wire.Array {
		said, err := thread.FromTree(list)
		if err != nil {
			return wire.Value{}, err
		}
		// Nobody was asked whether its sender may open a thread.
		said = slices.DeleteFunc(said, func(e thread.Entry) bool { return e.Type == "request" })
		for i, e := range said { // in a conversation that is closed nothing goes on
			if e.Successor() != "" {
				said[i].Body = e.Body.Without("ref")
			}
		}
		if len(said) > 0 {
			return a.Payload.With("mess", said.Tree()), nil
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
		return wire.Value{}, nil // it is about an answer of ours; who holds the thread says itself when it waits
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

// closeCode is what a close without a block means for a thread that a peer was offered; "" where it means nothing.
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
