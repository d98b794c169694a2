package mess

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Status returns the state of the link.
func (l *link) Status() bridge.LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Peers = len(l.peers)
	return s
}

// Test asks the exchange for its list, even if the link is down. If that works, a link that is down starts again.
func (l *link) Test(ctx context.Context) error {
	err := l.remote.probe(ctx)
	if joinErr, ok := errors.AsType[*joinError](err); ok && joinErr.final {
		return &bridge.LinkFault{Why: joinErr}
	} else if err != nil {
		return err
	}
	waiting.Wake(l.retry)
	return nil
}

// Knows reports whether a foreign thread belongs to a conversation.
func (l *link) Knows(ctx context.Context, ref, conv string) (bool, error) {
	k, found, err := l.load(ctx, ref)
	return found && k.Conv == conv, err
}

// Address returns the address of the exchange of the link.
func (l *link) Address() bridge.Address { return addressAt(l.cfg.Name, thread.ExchangeID) }

// addressAt returns the address of a peer behind a link or, if peer is empty, of the link and all its peers.
func addressAt(link, peer string) bridge.Address {
	return bridge.Address{Kind: Kind, Link: link, Peer: peer}
}

// Send sends a thread to the exchange, unless the thread cannot be claimed now. sent reports whether this call or an
// earlier one sent it.
func (l *link) Send(ctx context.Context, ref string) (t *thread.Thread, sent bool, err error) {
	to := string(l.Address().Pseudonym())
	if err := l.cfg.Offer(ctx, ref, to, l.Address().String(), nil); err != nil {
		return nil, false, err
	}
	if t, err = l.x.Read(ctx, ref, time.Now()); err != nil {
		return nil, false, err
	}
	return t, t.Peers[to].Conv != "", nil
}

// MarkUnsent returns the change that records that requests for this exchange wait to be sent. The caller stores it in
// the transaction that makes the requests, so that a crash loses none of them.
func (l *link) MarkUnsent() []store.Change {
	return []store.Change{{Record: store.Record{NS: exchange.NSMeta, Key: l.unsentKey()}, IfRev: store.Any}}
}

func (l *link) unsentKey() string { return "link/" + l.cfg.Name + "/unsent" }

// sendWaiting sends the requests for this exchange that may be claimed by now. It cancels a request that can never be
// sent, because the other requests would wait for it.
func (l *link) sendWaiting(ctx context.Context) error {
	rec, err := l.records.Get(ctx, exchange.NSMeta, l.unsentKey(), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = l.x.Load()
	}
	if err != nil {
		return err
	}
	to := string(l.Address().Pseudonym())
	waits := false
	for _, ref := range l.x.OpenFor(to) {
		_, sent, err := l.Send(ctx, ref)
		if thread.IsRefusal(err) { // it can never be sent
			sent, err = true, l.cfg.cancelUnsendable(ctx, ref, thread.PublicText(err))
		}
		if err != nil {
			return err
		}
		waits = waits || !sent
	}
	if waits {
		return nil
	}
	err = l.records.Apply(ctx, []store.Change{{Record: store.Record{NS: exchange.NSMeta, Key: l.unsentKey()}, IfRev: rec.Rev, Delete: true}}, time.Now())
	if errors.Is(err, store.ErrConflict) {
		return nil // more requests were made meanwhile
	}
	return err
}

// acceptEntry passes to the node an entry that the link wrote itself. The id of the message contains event, a word for
// what happened.
func (l *link) acceptEntry(ctx context.Context, peer, conv, event string, e thread.Entry) error {
	in, err := l.newBlockInbound(peer, conv+"/"+event, thread.Block{e})
	if err != nil {
		return err
	}
	in.ConvID = wire.ConversationID(conv)
	_, err = l.cfg.Mesh.Accept(ctx, in)
	return err
}
