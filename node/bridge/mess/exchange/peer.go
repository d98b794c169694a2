package exchange

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A peer is a mesh agent, or a participant of another exchange to which a link leads. It writes about a shared thread
// in the conversation of that thread.

// requestLink returns the link through which a peer requested the thread, or "".
func requestLink(t *thread.Thread) string {
	a, err := bridge.ParseAddress(t.Peers[t.Requester].Address)
	if err != nil {
		return ""
	}
	return a.Link
}

// convKey returns the key of a record whose body is the ref of the thread that we offered to a peer in a conversation.
func convKey(peer, conv string) string { return "conv/" + IDKey(peer, conv) }

// OfferedIn returns the thread that we offered to a peer in a conversation, or "" if we offered none there.
func (x *Exchange) OfferedIn(ctx context.Context, peer, conv string) (ref string, err error) {
	rec, err := x.records.Get(ctx, NSMeta, convKey(peer, conv), time.Now())
	return string(rec.Body), IgnoreMissing(err)
}

// RequestIn returns the thread that a peer opened in a conversation. Of several, it returns the only open one.
func (x *Exchange) RequestIn(peer, conv string) (ref string, ok bool) {
	for _, open := range []bool{false, true} {
		refs := x.index.refs("from:"+peer, 2, func(e *entry) bool { return e.external == conv && (e.isOpen() || !open) })
		if len(refs) == 1 {
			return refs[0], true
		}
	}
	return "", false
}

// HasOpenSibling reports whether another thread of the same conversation is still open.
func (x *Exchange) HasOpenSibling(t *thread.Thread) bool {
	if t.External == "" {
		return false
	}
	refs := x.index.refs("from:"+t.Requester, 1, func(e *entry) bool {
		return e.external == t.External && e.ref != t.Ref && e.isOpen()
	})
	return len(refs) > 0
}

// PointAt returns a peer's block with ref, our thread, in place of the peer's names for it. A reference stays if it
// names one of our threads, or a request, suggestion or question of the peer.
func (x *Exchange) PointAt(b thread.Block, peer, ref string) thread.Block {
	out := slices.Clone(b)
	for i, e := range out {
		re := thread.FirstRef(e.Body)
		// a late decision must not become a decision about another suggestion
		if re == "" || x.index.get(re) != nil || e.IsDecision() && re != "last" {
			continue
		}
		_, own := x.index.ownByClientID(peer, re)
		_, tagged := x.index.threadByTag(peer, re)
		if !own && !tagged {
			out[i].Body = e.Body.With("re", wire.Text(ref))
		}
	}
	return out
}

// OpenFor returns the owner's open, unclaimed threads that are offered to one peer alone.
func (x *Exchange) OpenFor(peer string) []string {
	return x.index.refs("from:"+thread.OwnerID, math.MaxInt, func(e *entry) bool {
		return e.only == peer && e.isOpen() && !e.isHeld()
	})
}

// OfferTo offers a thread to a peer, which may then claim it. It calls send, which must send the request in the new
// conversation conv and apply the changes, which include extra, in the same transaction. If the thread cannot be
// claimed, is only for another executor, or was offered to the peer before, OfferTo only applies the extra changes. If
// the thread does not exist, OfferTo does nothing.
func (x *Exchange) OfferTo(ctx context.Context, ref, peer, address string, extra []store.Change, send func(conv string, request wire.Value, changes []store.Change) error) error {
	return store.Retry(func() error {
		tx := x.begin(Actor{ID: thread.ExchangeID, forExchange: true}, Options{})
		t, err := tx.load(ctx, ref)
		if err != nil {
			return IgnoreMissing(err)
		}
		if !t.IsClaimable() || !t.IsOfferedTo(peer) || t.Peers[peer].Conv != "" {
			return x.records.Apply(ctx, extra, time.Now())
		}
		body, err := tx.originalRequest(ctx, t)
		if err != nil {
			return err
		}
		name := t.ClientID
		if name == "" {
			name = t.Ref
			body = body.With("id", wire.Text(name))
		}
		conv := string(wire.NewConversationID())
		if t.Peers == nil {
			t.Peers = map[string]thread.Peer{}
		}
		t.Peers[peer] = thread.Peer{Conv: conv, Address: address, Offered: true, Name: name}
		tx.touch(t)
		t.Version++
		err = send(conv, body, append(slices.Clone(extra),
			store.Change{Record: threadRecord(t), IfRev: t.Rev},
			store.Change{Record: store.Record{NS: NSMeta, Key: convKey(peer, conv), Body: []byte(ref)}, IfRev: store.Any}))
		if err == nil {
			x.index.publish(t)
		}
		return err
	})
}

// Cancel cancels a thread for its requester and applies the given changes in the same transaction. channel is how the
// requester asked for it. If the cancel is refused, because the thread has ended already, the changes are still
// applied.
func (x *Exchange) Cancel(ctx context.Context, t *thread.Thread, channel, reason string, changes []store.Change) error {
	cancel := thread.NewEntry("cancel", t.Ref, wire.TextField("reason", reason))
	_, err := x.Do(ctx, Actor{ID: t.Requester, Channel: channel}, thread.Block{cancel}, Options{Lax: true, Re: t.Ref, Records: changes})
	if thread.IsRefusal(err) {
		return x.records.Apply(ctx, changes, time.Now())
	}
	return err
}
