package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// interruptedRun is the body of an askInterrupted question.
type interruptedRun struct {
	Item   string          `json:"item"`
	From   wire.AgentID    `json:"from"`
	Name   string          `json:"name,omitempty"`
	Route  string          `json:"route"`
	Intent wire.Intent     `json:"intent"`
	Note   string          `json:"note"`
	Load   json.RawMessage `json:"payload"`
}

// recoverRuns takes up the hooks that were at work when the process before this one ended. A route that is repeatable
// runs again under the same message id; for any other the owner decides, because the hook may have done its work
// (AM-75). What cannot be taken up now stays for the next start.
func (n *Node) recoverRuns(ctx context.Context) {
	for _, tail := range n.tails {
		n.carryOutTail(context.WithoutCancel(ctx), tail, nil)
	}
	for _, id := range n.interrupted {
		if err := n.recoverRun(ctx, id); err != nil && ctx.Err() == nil {
			n.log.Error("recover interrupted hook", "item", id, "err", err)
		}
	}
}

// findInterrupted remembers what earlier processes left, before this one takes its first message.
func (n *Node) findInterrupted(ctx context.Context) error {
	for after := ""; ; {
		items, next, err := n.Inbox(ctx, ItemRunning, after, 500)
		if err != nil {
			return err
		}
		for _, item := range items {
			n.interrupted = append(n.interrupted, item.ID)
		}
		if after = next; after == "" {
			return nil
		}
	}
}

func (n *Node) recoverRun(ctx context.Context, id string) error {
	if err := n.promise(ctx, id); err != nil {
		return err
	}
	item, err := n.Item(ctx, id)
	if err != nil || item.State != ItemRunning {
		return err
	}
	switch route := n.route(item.Intent); {
	case route.Handler == nil: // no longer
		item.State = ItemNew
		return n.changeItem(ctx, item, nil)
	case route.Repeatable:
		done, err := n.runs.await(ctx)
		if err != nil {
			return err
		}
		return n.runAgain(ctx, item, route, nil, done)
	}
	return n.askInterrupted(ctx, item)
}

// promise makes the provisional answer part of the transcript: from now on the reply comes through the outbox, and
// that answer is what a sender gets that repeats the message meanwhile.
func (n *Node) promise(ctx context.Context, id string) error {
	item, err := n.Item(ctx, id)
	if err != nil || item.Pending || item.Kind == kindReply {
		return err
	}
	rec, err := n.store.Steps().FindReplay(ctx, string(item.Peer), string(item.MessageID), time.Now())
	if errors.Is(err, store.ErrNotFound) || err == nil && rec.Status == 0 {
		item.State, item.Note = ItemFailed, noteDeleted
		return n.changeItem(ctx, item, nil)
	}
	if err != nil {
		return err
	}
	m, digest, err := parseOwn(rec.Answer)
	if err != nil {
		return err
	}
	return n.toldPending(ctx, id, signed{Message: m, Raw: rec.Answer, Digest: digest})
}

const noteDeleted = "the conversation was deleted"

// changeItem stores an item with other changes.
func (n *Node) changeItem(ctx context.Context, item Item, more []store.Change) error {
	return n.store.Records().Apply(ctx, append(more, item.change()), time.Now())
}

// askInterrupted asks the owner whether the hook of an item may run again.
func (n *Node) askInterrupted(ctx context.Context, item Item) error {
	now := time.Now()
	item.State = ItemInterrupted
	item.Note = "a restart came while the agent worked on it; it may have done its work"
	body, err := json.Marshal(interruptedRun{
		Item: item.ID, From: item.Peer, Name: item.PeerName, Route: item.Route, Intent: item.Intent, Note: item.Note, Load: item.Payload,
	})
	if err != nil {
		return err
	}
	ask, changes := n.asks.Open(acl.Ask{
		ID: fmt.Sprintf("%s_%d", item.ID, item.Attempt), Kind: askInterrupted, Subject: item.acts(), Conv: item.key(),
		Title: fmt.Sprintf("run %s again for %s?", item.Route, item.Intent), Body: body, Hash: item.Digest,
		Choices: []acl.Choice{acl.Approve, acl.Reject}, Created: now, Expires: now.Add(n.cfg.HoldFor),
	}, acl.Slot{})
	item.Ask = ask.ID
	notice := n.notices.Change(n.notice("interrupted", item.Peer, item.PeerName, item.key(), now))
	return n.changeItem(ctx, item, append(changes, notice))
}

// runAgain starts the hook of an item once more, with what the owner decided, if anybody had to. done gives the room
// back that was reserved for it.
func (n *Node) runAgain(ctx context.Context, item Item, route Route, decided []store.Change, done func()) error {
	r, err := n.rerun(ctx, &item, route)
	if err == nil {
		err = n.changeItem(ctx, item, decided)
	}
	if err != nil {
		done()
		return err
	}
	r.done = done
	n.start(r)
	return nil
}

func (n *Node) rerun(ctx context.Context, item *Item, route Route) (*run, error) {
	payload, message, err := n.readItem(ctx, *item)
	if err != nil {
		return nil, err
	}
	item.State, item.Note, item.Route = ItemRunning, "", route.Name
	item.Attempt++
	return &run{n: n, itemID: item.ID, message: message, payload: payload, route: route, late: true}, nil
}

// readItem returns the payload of an item and the message that it came in.
func (n *Node) readItem(ctx context.Context, item Item) (payload wire.Value, message wire.Message, err error) {
	if payload, err = wire.Parse(item.Payload); err != nil {
		return payload, message, fmt.Errorf("read stored payload: %w", err)
	}
	message, err = n.original(ctx, item)
	return payload, message, err
}

// interruptedResolver carries out what the owner decided about an interrupted hook.
type interruptedResolver struct{ n *Node }

// Resolve runs the hook again if the message is still what the owner was shown, or leaves the message in the inbox for the owner to answer.
func (r interruptedResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	var body interruptedRun
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return fmt.Errorf("decode question: %w", err)
	}
	item, err := r.n.Item(ctx, body.Item)
	if err != nil {
		return err
	}
	if item.State != ItemInterrupted {
		return store.ErrConflict
	}
	if route := r.n.route(item.Intent); d.Choice == acl.Approve && route.Handler != nil {
		if standing, err := r.n.rules.Standing(ctx, ask.Subject, d.Now); err != nil {
			return err
		} else if standing == acl.Blocked { // since it was accepted (AM-25)
			return wire.ErrNotAllowed
		}
		payload, message, err := r.n.readItem(ctx, item)
		if err != nil {
			return err
		}
		if err := item.checkShown(payload, message, body.Load, ask.Hash); err != nil {
			return r.n.notShown(ask, err)
		}
		done, err := r.n.runs.reserve()
		if err != nil {
			return err
		}
		return r.n.runAgain(ctx, item, route, d.Changes, done)
	}
	item.State = ItemNew
	return r.n.changeItem(ctx, item, d.Changes)
}
