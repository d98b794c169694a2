package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// interruptedRun is the body of a question of the kind owner.AskInterrupted.
type interruptedRun struct {
	Item    string          `json:"item"`
	From    wire.AgentID    `json:"from"`
	Name    string          `json:"name,omitempty"`
	Route   string          `json:"route"`
	Intent  wire.Intent     `json:"intent"`
	Note    string          `json:"note"`
	Payload json.RawMessage `json:"payload"`
}

// recovery finishes what another process left unfinished when it did the node's [duties].
type recovery struct{ n *Node }

// run finishes decisions about held messages, and recovers the items whose hooks were running. A repeatable route runs
// its hook again with the same message id. Otherwise run asks the owner, because the hook may have done its work
// (AM-75). An item that cannot be recovered waits until a process takes the duties again.
func (r recovery) run(ctx context.Context) {
	n := r.n
	if err := n.finishDecisions(ctx); err != nil && ctx.Err() == nil {
		n.log.Error("find unfinished decisions", "err", err)
	}
	current := n.runs.ID()
	var interrupted []string // ids of items whose hooks were running when the previous process ended
	for item, err := range n.allItems(ctx, stateTerm(ItemRunning)) {
		if err != nil {
			if ctx.Err() == nil {
				n.log.Error("find interrupted hooks", "err", err)
			}
			break
		}
		if item.Runner != current {
			interrupted = append(interrupted, item.ID)
		}
	}
	for _, id := range interrupted {
		if err := r.recoverRun(ctx, id); err != nil && ctx.Err() == nil {
			n.log.Error("recover interrupted hook", "item", id, "err", err)
		}
	}
}

// recoverRun recovers one item whose hook was interrupted.
func (r recovery) recoverRun(ctx context.Context, id string) error {
	n := r.n
	if err := r.recordProvisional(ctx, id); err != nil {
		return err
	}
	item, err := n.Item(ctx, id)
	if err != nil || item.State != ItemRunning {
		return err
	}
	thread, err := n.book.Load(ctx, item.key(), time.Now())
	if err != nil {
		return err
	}
	if route := n.routeOf(thread.Conversation(), item); route.Handler != nil && !route.Repeatable {
		return r.askAboutRun(ctx, item)
	}
	err = hookRetries{n}.start(ctx, item, time.Now())
	if errors.Is(err, wire.ErrUnavailable) { // too many runs wait
		item.State, item.RetryAt = ItemWaiting, time.Time{}
		return n.storeItem(ctx, item)
	}
	return err
}

// recordProvisional adds the provisional answer (see [run]) to the transcript, unless that was done before. From then
// on the reply goes through the outbox, and a repeat of the message gets the provisional answer. If the conversation
// was deleted, the item fails.
func (r recovery) recordProvisional(ctx context.Context, id string) error {
	n := r.n
	item, err := n.Item(ctx, id)
	if err != nil || item.Pending || item.Kind == kindReply {
		return err
	}
	rec, err := n.store.Steps().FindReplay(ctx, string(item.Peer), string(item.MessageID), time.Now())
	if errors.Is(err, store.ErrNotFound) || err == nil && rec.Status == 0 { // status 0: the conversation was deleted
		item.State, item.Note = ItemFailed, noteDeleted
		return n.storeItem(ctx, item)
	}
	if err != nil {
		return err
	}
	m, digest, err := parseOwn(rec.Answer)
	if err != nil {
		return err
	}
	return n.recordPending(ctx, item.key(), id, signedMessage{Message: m, Raw: rec.Answer, Digest: digest})
}

const (
	noteDeleted = "the conversation was deleted"
	noteEnded   = "the conversation ended before the agent answered"
)

func (n *Node) storeItem(ctx context.Context, item Item, more ...store.Change) error {
	return n.store.Records().Apply(ctx, append(more, item.change()), time.Now())
}

// askAboutRun asks the owner whether the interrupted hook may run again.
func (r recovery) askAboutRun(ctx context.Context, item Item) error {
	n := r.n
	now := time.Now()
	item.State = ItemInterrupted
	item.Note = "the node restarted while the agent worked on it; the agent may have done its work"
	body := wire.MustMarshal(interruptedRun{
		Item: item.ID, From: item.Peer, Name: item.PeerName, Route: item.Route, Intent: item.Intent, Note: item.Note, Payload: item.Payload,
	})
	ask, changes := n.asks.Open(acl.Ask{
		Kind: owner.AskInterrupted, Subject: item.subject(), Conv: item.key(),
		Title: fmt.Sprintf("run %s again for %s?", item.Route, item.Intent), Body: body, Hash: item.Digest,
		Choices: []acl.Choice{acl.Approve, acl.Reject}, Created: now, Expires: now.Add(n.cfg.HoldFor),
	}, acl.Slot{}) // any number of such questions may wait
	item.Ask = ask.ID
	notice := n.notice("interrupted", item.Peer, item.PeerName, item.key(), now)
	notice.Ask = ask.ID
	return n.storeItem(ctx, item, append(changes, n.notices.Change(notice))...)
}

// runAgain starts the hook of an item again. The changes of the owner's decision, if any, are stored with the item.
// freePlace frees the place in the queue that the caller reserved.
func (n *Node) runAgain(ctx context.Context, item Item, route Route, freePlace func(), decision ...store.Change) error {
	payload, message, err := n.readItem(ctx, item)
	if err != nil {
		freePlace()
		return err
	}
	item.Note, item.Route, item.RetryAt = "", route.Name, time.Time{}
	claimed := n.claimRun(&item) // otherwise the item waits for another process
	if err := n.storeItem(ctx, item, decision...); err != nil || !claimed {
		freePlace()
		return err
	}
	n.start(&run{
		n: n, key: item.key(), itemID: item.ID, message: message, payload: payload, route: route, freePlace: freePlace,
		unattended: true, turn: item.turn(route),
	})
	return nil
}

// readItem returns the payload of an item, and the message from which the item was made, see originalMessage.
func (n *Node) readItem(ctx context.Context, item Item) (payload wire.Value, message wire.Message, err error) {
	if payload, err = wire.Parse(item.Payload); err != nil {
		return payload, message, fmt.Errorf("read stored payload: %w", err)
	}
	message, err = n.originalMessage(ctx, item)
	return payload, message, err
}

// resolve runs the hook again if the owner approves and a hook still handles the intent. Otherwise the message stays in
// the inbox for the owner to answer. An approval fails, and the question stays open, if the stored message differs from
// what the owner was shown.
func (q interruptedRun) resolve(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error {
	item, err := n.Item(ctx, q.Item)
	if err != nil {
		return err
	}
	if item.State != ItemInterrupted {
		return store.ErrConflict
	}
	if route := n.route(item.Intent); d.Choice == acl.Approve && route.Handler != nil {
		if standing, err := n.rules.Standing(ctx, ask.Subject, d.Now); err != nil {
			return err
		} else if standing == acl.Blocked { // blocked since the message was accepted (AM-25)
			return wire.ErrNotAllowed
		}
		payload, message, err := n.readItem(ctx, item)
		if err != nil {
			return err
		}
		if err := item.checkShown(payload, message, q.Payload, ask.Hash); err != nil {
			return n.refuseNotShown(ask, err)
		}
		freePlace, err := n.runs.Reserve(item.turn(route))
		if err != nil {
			return err
		}
		return n.runAgain(ctx, item, route, freePlace, d.Changes...)
	}
	item.State = ItemNew
	return n.storeItem(ctx, item, d.Changes...)
}
