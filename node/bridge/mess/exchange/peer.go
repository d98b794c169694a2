package exchange

import (
	"context"
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

// Shared is the record of a thread that we share with a peer: what we know of the thread at the other side. The peer
// decides about a thread that we offered to it, and our thread Ref follows. A thread that somebody opened at the exchange
// behind a link becomes, when the owner's rules let it in, a thread of our exchange, which decides about the work here.
type Shared struct {
	Key  string `json:"-"` // of the record, see SharedKey
	Conv string `json:"conv"`
	Ref  string `json:"ref,omitempty"` // our thread that we offered to the peer

	// The thread at the exchange behind a link. A mesh agent does not tell us of its own.
	There     string      `json:"there,omitempty"`   // its ref
	Before    []string    `json:"before,omitempty"`  // the threads that the exchange replaced with There
	Mine      bool        `json:"mine,omitempty"`    // we opened it
	Seen      int         `json:"seen,omitempty"`    // number of messages that were received or skipped
	Updated   string      `json:"updated,omitempty"` // its update time in the list when we had received all of its messages
	State     thread.Code `json:"state,omitempty"`   // the last state from the exchange
	Peer      string      `json:"peer,omitempty"`    // its requester, if we did not open it
	ClaimSent bool        `json:"held,omitempty"`    // our claim was sent
	Holder    string      `json:"holder,omitempty"`  // the holder that the exchange showed after our claim, which is our name there
	Intent    wire.Intent `json:"intent,omitempty"`  // of a conversation in plain text, which has no thread in our exchange
}

// SharedKey returns the key of the record of the thread that we share with a peer in a conversation.
func SharedKey(peer, conv string) string { return wire.HashOf(peer, conv) }

// ReadShared returns what we know of the thread that we share with a peer in a conversation. It has no Conv if there is
// none.
func ReadShared(ctx context.Context, r store.Records, peer, conv string) (s Shared, err error) {
	_, _, err = store.ReadRecord(ctx, r, NSShared, SharedKey(peer, conv), &s, time.Now())
	s.Key = SharedKey(peer, conv)
	return s, err
}

// OfferedIn returns the thread that we offered to a peer in a conversation, or "" if we offered none there.
func (x *Exchange) OfferedIn(ctx context.Context, peer, conv string) (ref string, err error) {
	s, err := ReadShared(ctx, x.records, peer, conv)
	return s.Ref, err
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
			store.Change{Record: store.Record{NS: NSShared, Key: SharedKey(peer, conv), Body: wire.MustMarshal(Shared{Conv: conv, Ref: ref})}}))
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
