package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// mesh is what a bridge of one kind sees of the node.
type mesh struct {
	n    *Node
	kind string
}

var _ bridge.Mesh = mesh{}

// ID implements [bridge.Mesh].
func (m mesh) ID() wire.AgentID { return m.n.ID() }

// Identity implements [bridge.Mesh].
func (m mesh) Identity() (wire.Card, *signing.PrivateKey) {
	id := m.n.registrar.Identity()
	return id.Card, id.Key
}

// Accept implements [bridge.Receiver].
func (m mesh) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	return m.n.Accept(ctx, in)
}

// Receive implements [bridge.Mesh].
func (m mesh) Receive(ctx context.Context, message []byte) (bridge.Outcome, error) {
	return m.n.Receive(ctx, message)
}

// Asks implements [bridge.Mesh].
func (m mesh) Asks() *acl.Asks { return m.n.asks }

// Send implements [bridge.Mesh].
func (m mesh) Send(ctx context.Context, out bridge.Outgoing) (owner.Sent, error) {
	const wait = 0
	return m.n.Send(ctx, Outgoing{
		To: out.To, Address: out.Address, Conv: out.Conv, Intent: out.Intent, Payload: out.Payload, Via: "bridge", Records: out.Records,
	}, wait)
}

// Reachable implements [bridge.Mesh].
func (m mesh) Reachable(a bridge.Address) {
	to := a.String()
	// An address without a peer means the whole link.
	m.n.outbox.linked.Store(true)
	m.n.work.Open(nsOutbox, func(awaits string) bool { return awaits == to || a.Peer == "" && strings.HasPrefix(awaits, to) })
}

// Decide implements [bridge.Mesh]. It decides the question about the message that is held in conv because of its
// intent; the owner's page shows the same question (THREATS 39). Decide refuses if no such message is held. It refuses
// a question about our answer, which the bridge has not shown to the owner, and a question about the sender, because
// that decision covers more than this message.
func (m mesh) Decide(ctx context.Context, conv store.ConvKey, approve bool) error {
	choice := acl.Reject
	if approve {
		choice = acl.Approve
	}
	held, err := m.n.itemsOf(ctx, conv, owner.ItemHeld)
	if err != nil {
		return err
	}
	if len(held) == 0 {
		return owner.Fault(http.StatusConflict, "nothing waits for a decision here: the message was decided or withdrawn, or its question expired", "see agentmesh inbox for what became of the message")
	}
	ask, err := m.n.asks.Get(ctx, held[0].Ask, time.Now())
	if err != nil {
		return owner.Explain(err)
	}
	if ask.Kind != owner.AskMessage {
		return owner.Fault(http.StatusConflict, "your answer waits for a decision here, not the message; decide about the answer first", "agentmesh approvals show "+ask.ID)
	}
	var body owner.HeldBody
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return fmt.Errorf("decode question: %w", err)
	}
	if body.Hold == "sender" {
		return owner.Fault(http.StatusConflict, "the sender is not approved yet; decide about the sender first", "agentmesh approvals show "+ask.ID)
	}
	ended, err := m.n.asks.Decide(ctx, ask.ID, ask.Hash, choice, m.kind, time.Now())
	if errors.Is(err, acl.ErrAskGone) {
		return owner.Fault(http.StatusConflict, owner.DescribeEnd(ended), "")
	}
	return owner.Explain(err)
}

// Standing implements [bridge.Mesh].
func (m mesh) Standing(ctx context.Context, principal string, now time.Time) (acl.Standing, error) {
	return m.n.rules.Standing(ctx, principal, now)
}

// Find implements [bridge.Mesh].
func (m mesh) Find(ctx context.Context, q client.Query) ([]wire.Card, error) {
	return client.FindCards(ctx, m.n.cfg.Directories, q)
}

// Follow implements [bridge.Mesh].
func (m mesh) Follow(ctx context.Context, seen func(bridge.Event)) {
	events, stop := m.n.Watch()
	defer stop()
	progress := m.n.bridges.progress.Watch(bridge.ProgressRoom)
	defer progress.Close()
	seen(bridge.Event{Missing: true})
	for {
		select {
		case ev, ok := <-events:
			if !ok { // the node stops
				<-ctx.Done()
				return
			}
			switch {
			case ev.Topic == owner.TopicReset:
				seen(bridge.Event{Missing: true})
			case ev.Topic == owner.TopicInbox && ev.State == stateDeleted && ev.Peer != "":
				seen(bridge.Event{Gone: &store.ConvKey{Peer: ev.Peer, ID: ev.Conversation}})
			case ev.Topic == owner.TopicInbox && ev.Foreign:
				if item, err := m.n.Item(ctx, ev.ID); err == nil && item.Address != "" {
					state := stateOf(item)
					seen(bridge.Event{Item: &state})
				}
			}
		case p := <-progress.C():
			seen(bridge.Event{Progress: &p})
		case <-ctx.Done():
			return
		}
	}
}

func stateOf(i Item) bridge.ItemState {
	return bridge.ItemState{Address: i.Address, MessageID: i.MessageID, Conversation: i.Conversation, Intent: i.Intent, State: i.State}
}

// Items implements [bridge.Mesh].
func (m mesh) Items(ctx context.Context, conv store.ConvKey) (out []bridge.ItemState, err error) {
	items, err := m.n.itemsOf(ctx, conv)
	for _, item := range items {
		out = append(out, stateOf(item))
	}
	return out, err
}

// PutTask implements [bridge.Mesh].
func (m mesh) PutTask(ctx context.Context, t bridge.Task, changes []store.Change) error {
	return m.n.book.Do(ctx, noConversation, func(u *conversations.Unit) error {
		u.Add(changes...)
		return m.n.updateTask(ctx, u, t)
	})
}
