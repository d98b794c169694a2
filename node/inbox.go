package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const nsInbox = "inbox"

// The kinds of inbox items besides kindTask. A kindMessage is a message that the peer sent on its own. A kindReply is
// an answer to a message of ours, to which the peer expects no further answer: a synchronous reply, or an answer in a
// foreign protocol.
const (
	kindMessage = "message"
	kindReply   = "reply"
)

// Item is one message in the inbox.
type Item struct {
	owner.Item
	Runner string `json:"runner,omitempty"` // the process whose hook handles the item, see [hook.Pool.ID]
	Origin string `json:"origin,omitempty"` // of a stranger: where the message came from
	Place  string `json:"place,omitempty"`  // in the order of the inbox, if not the place of its arrival
	Agrees bool   `json:"agrees,omitempty"` // the message is an accept that leaves no question to the owner, see [conversations.Deal.IsPlainAccept]
	// Deferred is set while a held message must not yet change what the conversation proposes or agrees (AM-88).
	Deferred bool `json:"deferred,omitempty"`
	// Due is when the wait of the item ends: of a held or interrupted item its question, of a woken agent the reminder.
	Due   time.Time `json:"due,omitzero"`
	rev   store.Rev
	lease *store.Lease // the lease under which the hook runs, or nil
}

func (a *acceptance) newItem(state owner.ItemState) Item {
	in := a.in
	item := Item{Item: owner.Item{
		ID: newItemID(a.now), State: state, Kind: kindMessage,
		Peer: in.Peer, PeerName: in.Name, Address: in.Address,
		Conversation: in.ConvID, MessageID: in.MessageID, Intent: in.Intent,
		Payload: signing.Canonical(in.Payload, signing.JCS), Verified: in.Verified, Trust: string(a.state.Standing),
		ActionKnown: a.verdict.ActionKnown, Sealed: a.seal.sealed, Unjudged: a.verdict.Event.Unjudged,
		Cancels: a.verdict.Cancels, ConfirmsAccept: a.verdict.Confirms, At: a.now, Digest: hexOf(in.Digest),
		Expires: conversations.Sooner(a.now.Add(a.n.cfg.Retention), in.Purge),
	}, Agrees: state != owner.ItemHeld && a.unit.Conversation().Deal(in.Intent).IsPlainAccept(in.MessageID), Deferred: state == owner.ItemHeld}
	if in.Principal != string(in.Peer) {
		item.Principal = in.Principal
	}
	if in.Reply {
		item.Kind = kindReply
	}
	if a.verdict.Stranger {
		item.Origin = "id:" + in.Principal
		if len(in.Sources) > 0 { // many ids may share an address
			item.Origin = in.Sources[0].Key
		}
	}
	return item
}

// newItemID returns a unique id that sorts by arrival.
func newItemID(at time.Time) string {
	return itemTime(at) + strings.ToLower(rand.Text()[:8])
}

func itemTime(at time.Time) string {
	return fmt.Sprintf("in_%012x%03x", at.UnixMilli(), at.UnixMicro()%1000)
}

func (i Item) key() store.ConvKey {
	return store.ConvKey{Peer: string(i.Peer), ID: string(i.Conversation)}
}

// subject returns the principal of the sender.
func (i Item) subject() string {
	return cmp.Or(i.Principal, string(i.Peer))
}

// answered returns what the rules need to decide who answers the message.
func (i Item) answered(payload wire.Value) rules.Answered {
	return rules.Answered{ID: i.MessageID, Intent: i.Intent, Payload: payload, Reply: i.Kind == kindReply, Confirms: i.ConfirmsAccept, Unjudged: i.Unjudged}
}

// turn returns the turn for which the handler of the item waits. Each link of a bridge has a duty of its own, because a
// link may wait for its network.
func (i Item) turn(route Route) hook.Turn {
	t := hook.Turn{Duty: route.Duty, Source: hook.Source{Key: i.subject()}}
	if i.Origin != "" && !i.Approved {
		t.Source = hook.Source{Key: i.Origin, Stranger: true}
	}
	if address, err := bridge.ParseAddress(i.Address); err == nil && address.Kind == route.Duty {
		t.Duty += ":" + address.Link
	}
	return t
}

// change returns the change that stores the item. It fails if the stored item changed since it was read.
func (i Item) change() store.Change {
	return store.Change{IfRev: i.rev, Held: i.lease, Record: store.Record{
		NS: nsInbox, Key: i.place(), Body: wire.MustMarshal(i), Expires: i.Expires, Terms: i.terms(), Due: i.due(), Party: i.subject(),
	}}
}

// due returns when something must be done about the item, or the zero time; see [Node.workItem].
func (i Item) due() time.Time {
	switch {
	case i.State == owner.ItemWaiting:
		return cmp.Or(i.RetryAt, store.DueNow)
	case i.State == owner.ItemHeld, i.State == owner.ItemInterrupted, i.State == owner.ItemNew && !i.Woken.IsZero():
		return i.Due
	}
	return time.Time{}
}

// hold makes the item wait for the owner's decision about a question.
func (i *Item) hold(ask acl.Ask) { i.State, i.Ask, i.Due = owner.ItemHeld, ask.ID, ask.Expires }

// terms returns the index terms by which the item can be found.
func (i Item) terms() []string {
	terms := []string{stateTerm(i.State)}
	switch {
	case i.Kind != kindTask:
		terms = append(terms, convTerm(i.key()))
	case i.State.IsUnanswered():
		terms = append(terms, aboutTerm(i.About))
	}
	if i.NeedsOwner(i.Agrees) {
		terms = append(terms, owner.NeedsOwner)
	}
	if i.Judgment() != "" {
		terms = append(terms, string(owner.Guarded))
	}
	return terms
}

func decodeItem(r store.Record) (Item, error) {
	i, err := store.Decode[Item](r)
	i.rev = r.Rev
	return i, err
}

// Item returns one inbox item, or store.ErrNotFound if it does not exist.
func (n *Node) Item(ctx context.Context, id string) (Item, error) {
	r, err := n.store.Records().Get(ctx, nsInbox, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		var moved store.Record
		if moved, err = n.store.Records().Get(ctx, nsMoved, id, time.Now()); err == nil {
			r, err = n.store.Records().Get(ctx, nsInbox, string(moved.Body), time.Now())
		}
	}
	if err != nil {
		return Item{}, err
	}
	return decodeItem(r)
}

// Inbox lists the items in the given state, or with [owner.NeedsOwner] or [owner.Guarded] those, in the order of their
// places: an item that waited for the owner follows those that arrived before its release. An empty state selects all
// items. after is "" for the first page, and otherwise the id of an item, such as next from the previous page. next is ""
// on the last page.
func (n *Node) Inbox(ctx context.Context, state owner.ItemState, after string, limit int) (items []Item, next string, err error) {
	return n.listInbox(ctx, owner.Query{State: string(state), After: after, Limit: limit})
}

func (n *Node) listInbox(ctx context.Context, q owner.Query) (items []Item, next string, err error) {
	after := q.After
	switch at, err := n.Item(ctx, after); {
	case err == nil:
		after = at.place()
	case !errors.Is(err, store.ErrNotFound): // of the item that was deleted, the id says the place
		return nil, "", err
	}
	items, next, err = listRecords(ctx, n.store.Records(), q.Newest, nsInbox, stateTerm(owner.ItemState(q.State)), after, q.Limit, decodeItem)
	if next != "" {
		next = items[len(items)-1].ID
	}
	return items, next, err
}

// nsMoved has the place of each item that the owner released into the inbox, under the id of the item.
const nsMoved = "inbox-moved"

// place returns the item's place in the order of the inbox, which is the key of its record.
func (i Item) place() string { return cmp.Or(i.Place, i.ID) }

// idAt returns the id of the item at a place.
func idAt(place string) string {
	const timeSize = len("in_") + 12 + 3
	if id := "in_" + place[min(timeSize, len(place)):]; len(id) > timeSize {
		return id
	}
	return place
}

// moveToEnd puts the item behind all that are in the inbox now, and stores it. Of items that move at the same time, the
// first to arrive comes first.
func (i *Item) moveToEnd(now time.Time) []store.Change {
	drop := store.Change{IfRev: i.rev, Record: store.Record{NS: nsInbox, Key: i.place()}, Delete: true}
	i.Place, i.rev = itemTime(now)+strings.TrimPrefix(i.ID, "in_"), store.Absent
	moved := store.Record{NS: nsMoved, Key: i.ID, Body: []byte(i.Place), Expires: i.Expires}
	return []store.Change{drop, i.change(), {IfRev: store.Any, Record: moved}}
}

// stateTerm returns the index term of the inbox items, or of the outbox entries, in a state. owner.NeedsOwner and
// owner.Guarded are terms of their own.
func stateTerm[S ~string](state S) string {
	if state == "" || state == owner.NeedsOwner || string(state) == string(owner.Guarded) {
		return string(state)
	}
	return "state:" + string(state)
}

// allItems returns all inbox items with a term. Its pages are small, because an item may be as large as a message. An
// error ends the iteration.
func (n *Node) allItems(ctx context.Context, term string) iter.Seq2[Item, error] {
	return store.All(func(after string) ([]Item, string, error) { return n.listItems(ctx, term, after, 50) })
}

func (n *Node) listItems(ctx context.Context, term, after string, limit int) (items []Item, next string, err error) {
	return listRecords(ctx, n.store.Records(), false, nsInbox, term, after, limit, decodeItem)
}

// listRecords returns a page of decoded records, the newest first if newest is set.
func listRecords[T any](ctx context.Context, records store.Records, newest bool, ns, term, after string, limit int, decode func(store.Record) (T, error)) (found []T, next string, err error) {
	list := records.List
	if newest {
		list = records.ListBackward
	}
	page, err := list(ctx, ns, term, after, limit, time.Now())
	if err != nil {
		return nil, "", err
	}
	for _, r := range page.Records {
		v, err := decode(r)
		if err != nil {
			return nil, "", err
		}
		found = append(found, v)
	}
	return found, page.Next, nil
}

// WaitInbox is [Node.Inbox], except that it waits for a first item, but no longer than q.Wait.
func (n *Node) WaitInbox(ctx context.Context, q owner.Query) ([]Item, string, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Wait)
	defer cancel()
	for {
		news := n.inboxChanged.Wait()
		items, next, err := n.listInbox(context.WithoutCancel(ctx), q)
		if err != nil || len(items) > 0 {
			return items, next, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, "", nil
		}
	}
}

// Acknowledge marks a new, failed or waiting item as read. It returns any other item unchanged.
func (n *Node) Acknowledge(ctx context.Context, id string) (Item, error) {
	var item Item
	err := n.book.Do(ctx, noConversation, func(u *conversations.Unit) (err error) {
		if item, err = n.Item(ctx, id); err != nil || item.State != owner.ItemNew && item.State != owner.ItemFailed && item.State != owner.ItemWaiting {
			return err
		}
		item.State = owner.ItemRead
		u.Add(item.change())
		return nil
	})
	return item, err
}

// noConversation is the key of a unit that changes only records.
var noConversation store.ConvKey

// itemsOf returns the items of a conversation that are in one of the given states, or all if none is given. It omits
// tasks.
func (n *Node) itemsOf(ctx context.Context, key store.ConvKey, states ...owner.ItemState) (items []Item, err error) {
	for item, err := range n.allItems(ctx, convTerm(key)) {
		if err != nil {
			return nil, err
		}
		if len(states) == 0 || slices.Contains(states, item.State) {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
	return items, nil
}

// convTerm returns the index term of the items and of the outbox entries in a conversation.
func convTerm(key store.ConvKey) string { return "conv:" + key.Peer + "/" + key.ID }
