package mess

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// end ends our thread as its requester, of whom it was heard through a channel; changes go with it.
func (b *Bridge) end(ctx context.Context, t *thread.Thread, channel, why string, changes []store.Change) error {
	body := wire.Obj(wire.TextField("re", t.Ref), wire.TextField("reason", why))
	who := Actor{ID: t.Requester, Channel: channel}
	_, err := b.x.Do(ctx, who, thread.Block{{Type: "cancel", Body: body}}, Options{Lax: true, Re: t.Ref, Records: changes})
	if thread.IsRefusal(err) { // it has ended
		return b.x.records.Apply(ctx, changes, time.Now())
	}
	return err
}

// unask takes back the request of a thread that waits for the owner to let it in.
func (l *link) unask(ctx context.Context, k knownThread, why string) error {
	delete(l.asked, k.Conv)
	if l.b.cfg.Asks == nil {
		return nil
	}
	held := false
	_, err := l.b.cfg.Asks.Withdraw(ctx, store.ConvKey{Peer: l.pseudonym(k.Peer), ID: k.Conv}, func(a acl.Ask) bool {
		held = held || a.Kind == owner.AskMessage
		return false
	}, time.Now())
	if err != nil || !held {
		return err
	}
	body := wire.Obj(wire.TextField("re", "last"), wire.TextField("reason", why))
	if err := l.hand(ctx, k.Peer, k.Conv, "over", thread.Entry{Type: "cancel", Body: body}); !thread.IsRefusal(err) { // else it was decided
		return err
	}
	return nil
}

// hand hands in what the other side did not say in words.
func (l *link) hand(ctx context.Context, peer, conv, what string, e thread.Entry) error {
	in, err := l.inbound(peer, conv+"/"+what, thread.Block{e})
	if err != nil {
		return err
	}
	in.ConvID = wire.ConversationID(conv)
	_, err = l.b.cfg.Node.Accept(ctx, in)
	return err
}

// knowAsked finds, after a start, the threads that wait for the owner to let them in.
func (l *link) knowAsked(ctx context.Context) error {
	if l.asked != nil || l.b.cfg.Asks == nil {
		return nil
	}
	asked := map[string]bool{}
	for after := ""; ; {
		asks, next, err := l.b.cfg.Asks.List(ctx, acl.AskFilter{State: acl.AskPending, Each: true}, after, 100, time.Now())
		if err != nil {
			return err
		}
		for _, a := range asks {
			var held struct {
				Address string `json:"address"`
			}
			if a.Kind != owner.AskMessage || json.Unmarshal(a.Body, &held) != nil {
				continue
			}
			if from, err := bridge.ParseAddress(held.Address); err == nil && from.Kind == Kind && from.Link == l.cfg.Name {
				asked[a.Conv.ID] = true
			}
		}
		if after = next; after == "" {
			l.asked = asked
			return nil
		}
	}
}
