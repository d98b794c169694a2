package node

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// OwnerAPI returns the node as the owner API sees it.
func (n *Node) OwnerAPI() OwnerAPI { return OwnerAPI{n} }

// OwnerAPI implements the owner API of a node. Its errors are for the owner.
type OwnerAPI struct{ n *Node }

var _ owner.Node = OwnerAPI{}

// Operations returns the node's part of the owner API.
func (o OwnerAPI) Operations() []owner.Operation {
	questions := owner.Questions{
		Asks: o.n.asks, Records: o.n.store.Records(), Notices: o.n.notices, HoldFor: o.n.cfg.HoldFor, Find: o.resolveConversation,
	}
	return slices.Concat(owner.Operations(o), owner.AuditOperations(o.n.audit, o), questions.Operations())
}

// ListItems implements [owner.Inbox].
func (o OwnerAPI) ListItems(ctx context.Context, q owner.Query) (owner.List[owner.Item], error) {
	if err := q.CheckAfter("in_", "an inbox item"); err != nil {
		return owner.List[owner.Item]{}, err
	}
	var items []Item
	var next string
	var err error
	if q.Conversation != "" {
		items, err = o.n.itemsOf(ctx, store.ConvKey{Peer: q.Peer, ID: q.Conversation})
	} else {
		items, next, err = o.n.WaitInbox(ctx, ItemState(q.State), q.After, q.Limit, q.Wait)
	}
	list := make([]owner.Item, len(items))
	for i, item := range items {
		list[i] = item.Item
	}
	return owner.Page(list, next), err
}

// FindItem implements [owner.Inbox].
func (o OwnerAPI) FindItem(ctx context.Context, id string) (owner.Item, error) {
	item, err := o.findItem(ctx, id)
	return item.Item, err
}

// Acknowledge implements [owner.Inbox].
func (o OwnerAPI) Acknowledge(ctx context.Context, id string) (owner.Item, error) {
	item, err := o.findItem(ctx, id)
	if err == nil {
		item, err = o.n.Acknowledge(ctx, item.ID)
	}
	return item.Item, err
}

// findItem returns the item with this id, or with this unique prefix of an id.
func (o OwnerAPI) findItem(ctx context.Context, id string) (Item, error) {
	item, err := o.n.Item(ctx, id)
	if !errors.Is(err, store.ErrNotFound) {
		return item, err
	}
	candidates, _, err := o.n.Inbox(ctx, "", id, 2)
	if err != nil {
		return Item{}, err
	}
	return uniqueMatch(candidates, func(i Item) string { return i.ID }, id)
}

// uniqueMatch returns the only candidate whose id starts with prefix, which must not be empty. candidates are the first
// two entries whose ids sort after prefix.
func uniqueMatch[T any](candidates []T, id func(T) string, prefix string) (match T, err error) {
	matches := slices.DeleteFunc(candidates, func(e T) bool { return prefix == "" || !strings.HasPrefix(id(e), prefix) })
	switch len(matches) {
	case 0:
		return match, store.ErrNotFound
	case 1:
		return matches[0], nil
	}
	return match, owner.Fault(http.StatusConflict, "more than one entry matches", "give more of the id")
}

// ListNotices implements [owner.Control].
func (o OwnerAPI) ListNotices(ctx context.Context, q owner.Query) (owner.List[notify.Notice], error) {
	if err := q.CheckAfter("note_", "a notice"); err != nil {
		return owner.List[notify.Notice]{}, err
	}
	notices, next, err := o.n.notices.List(ctx, q.After, q.Limit, time.Now())
	return owner.Page(notices, next), err
}

// SetPaused implements [owner.Control].
func (o OwnerAPI) SetPaused(ctx context.Context, paused bool, by string) error {
	return o.n.SetPause(ctx, paused, by)
}

// FollowEvents implements [owner.Events].
func (o OwnerAPI) FollowEvents(last string) (owner.EventStream, error) {
	leave, ok := o.n.events.Enter()
	if !ok {
		return owner.EventStream{}, owner.ErrManyStreams
	}
	w, missed, whole := o.n.events.Watch(last)
	return owner.EventStream{
		Events: w.C, Missed: missed, Complete: whole,
		Name: func(ev Event) string { return o.n.events.ID(ev.Seq) },
		Stop: func() { o.n.events.Unwatch(w); leave() },
	}, nil
}
