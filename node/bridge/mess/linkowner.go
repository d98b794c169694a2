package mess

import (
	"context"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Status returns the state of the link.
func (l *link) Status() bridge.LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.keeper.Status()
	s.Peers = len(l.peers)
	return s
}

// Test asks the exchange for its list, even if the link is down. If that works, a link that is down starts again.
func (l *link) Test(ctx context.Context) error {
	if err := l.remote.probe(ctx); err != nil {
		return err
	}
	if l.isDown() {
		l.keeper.Wake()
	}
	return nil
}

// Knows reports whether a foreign thread belongs to a conversation with a peer of the link.
func (l *link) Knows(ctx context.Context, peer, conv, ref string) (bool, error) {
	k, err := exchange.ReadShared(ctx, l.records, peer, conv)
	return ref != "" && (k.There == ref || slices.Contains(k.Before, ref)), err
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

// cancelUnsendable cancels a request of ours that can never be sent, notifies the owner of the reason why, and applies
// changes.
func (l *link) cancelUnsendable(ctx context.Context, t *thread.Thread, why string, changes []store.Change) error {
	notice := ownerNotice(l.cfg.Notices, "the link "+l.cfg.Name+" cannot send the request "+t.Ref, why)
	return l.x.Cancel(ctx, t, "link", "it could not be sent: "+why, append(notice, changes...))
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
