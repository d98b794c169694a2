package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
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
		items, next, err = o.n.WaitInbox(ctx, q)
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
	var candidates []Item
	for item, err := range store.All(func(after string) ([]Item, string, error) { return o.n.listItems(ctx, "", cmp.Or(after, id), 50) }) {
		if err != nil {
			return Item{}, err
		}
		if len(candidates) == 2 || !strings.HasPrefix(item.place(), id) {
			break
		}
		if item.Place == "" { // the others are found by their ids below
			candidates = append(candidates, item)
		}
	}
	readMoved := func(r store.Record) (Item, error) { return o.n.Item(ctx, r.Key) }
	moved, _, err := listRecords(ctx, o.n.store.Records(), false, nsMoved, "", id, 2, readMoved)
	if err != nil {
		return Item{}, err
	}
	return uniqueMatch(append(candidates, moved...), func(i Item) string { return i.ID }, id)
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
	list := o.n.notices.List
	if q.Newest {
		list = o.n.notices.Latest
	}
	notices, next, err := list(ctx, q.After, q.Limit, time.Now())
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
		Name: func(ev owner.Event) string { return o.n.events.ID(ev.Seq) },
		Stop: func() { o.n.events.Unwatch(w); leave() },
	}, nil
}

// statusCap bounds what Status counts in the store.
const statusCap = 1000

// Status implements [owner.Control].
func (o OwnerAPI) Status(ctx context.Context) (owner.Status, error) {
	return o.Overview(ctx, statusCap)
}

// Overview is [OwnerAPI.Status] with maxCount instead of statusCap.
func (o OwnerAPI) Overview(ctx context.Context, maxCount int) (owner.Status, error) {
	n, now, id := o.n, time.Now(), o.n.registrar.Identity()
	var err error
	count := func(ns, term string) (found int) { // asks nothing more after an error
		if err == nil {
			found, err = n.store.Records().Count(ctx, ns, term, maxCount, now)
		}
		return found
	}
	s := owner.Status{
		AgentID: id.Card.ID, Name: id.Card.Name, Endpoint: id.Card.Endpoint, Fingerprint: id.Key.Public().Fingerprint(),
		Paused: n.IsPaused(), Started: n.started, Mode: n.mode(), Outgoing: n.cfg.Outbound.mode(), Directories: n.registrar.Listings(),
		Inbox: count(nsInbox, stateTerm(owner.ItemNew)), NeedsOwner: count(nsInbox, owner.NeedsOwner), Waiting: count(nsInbox, stateTerm(owner.ItemWaiting)),
		Approvals: count(acl.AskNamespace, acl.TermPending), Store: "ok",
		Outbox: map[string]int{"queued": count(nsOutbox, stateTerm(owner.SendQueued)), "delivering": n.work.Running(nsOutbox)},
	}
	if err != nil {
		return owner.Status{}, err
	}
	if n.cfg.Process != nil {
		s.ProcessStatus = n.cfg.Process(ctx)
	}
	if err := n.store.Ping(ctx); err != nil {
		s.Store = err.Error()
	}
	for _, r := range n.runs.Stats.List() {
		s.Hooks = append(s.Hooks, owner.HookStatus{Route: r.Route, Runs: r.Runs, Failures: r.Failures, LastFailure: r.LastAt, Fault: string(r.Last)})
	}
	failing, _, err := n.listEntries(ctx, false, termFailing, "", 1)
	if err != nil {
		return owner.Status{}, err
	}
	if len(failing) > 0 {
		s.Delayed = &failing[0].OutboxEntry
	}
	if s.Notify, err = n.notices.Status(ctx, now); err != nil {
		return owner.Status{}, err
	}
	if s.Autonomy, err = n.turns.list(ctx, now); err != nil {
		return owner.Status{}, err
	}
	if s.Late, err = n.lateWork(ctx, now); err != nil {
		return owner.Status{}, err
	}
	return s, nil
}

// lateWork returns the queues whose work waits for more than a minute beyond its time.
func (n *Node) lateWork(ctx context.Context, now time.Time) (list []owner.LateWork, err error) {
	for _, ns := range n.work.Namespaces() {
		late, err := n.work.Late(ctx, ns)
		if err != nil {
			return nil, err
		}
		if late > time.Minute {
			list = append(list, owner.LateWork{Queue: ns, Since: now.Add(-late).UTC()})
		}
	}
	return list, nil
}

// CountItems counts the items of the inbox in a state, or with [owner.NeedsOwner], up to maxCount.
func (o OwnerAPI) CountItems(ctx context.Context, state string, maxCount int) (int, error) {
	return o.n.store.Records().Count(ctx, nsInbox, stateTerm(owner.ItemState(state)), maxCount, time.Now())
}

// CountApprovals counts the pending questions, up to maxCount.
func (o OwnerAPI) CountApprovals(ctx context.Context, maxCount int) (int, error) {
	return o.n.store.Records().Count(ctx, acl.AskNamespace, acl.TermPending, maxCount, time.Now())
}

// Modes returns the access modes.
func (o OwnerAPI) Modes() owner.Modes {
	return owner.Modes{Incoming: o.n.mode(), Outgoing: o.n.cfg.Outbound.mode()}
}

// Refusals returns the newest refused messages since the process started, newest first. next closes at the next
// refusal.
func (o OwnerAPI) Refusals() (list []owner.Refusal, next <-chan struct{}) {
	next = o.n.refusals.news.Wait() // first, so that no refusal is missed
	return o.n.refusals.newest(), next
}

// Watch is [Node.Watch].
func (o OwnerAPI) Watch() (<-chan owner.Event, func()) { return o.n.Watch() }

// Paused reports whether the node refuses all messages.
func (o OwnerAPI) Paused() bool { return o.n.IsPaused() }

// Audit returns the audit log.
func (o OwnerAPI) Audit() *acl.Audit { return o.n.audit }

// NamesOf implements [owner.Names].
func (o OwnerAPI) NamesOf(ctx context.Context, id string) (names owner.PeerNames, err error) {
	page, err := o.n.store.Records().List(ctx, nsAliases, aliasTerm(id), "", 1, time.Now())
	for _, r := range page.Records {
		names.PeerAlias = r.Key
	}
	if err == nil {
		names.PeerName, err = o.n.cards.NameOf(ctx, wire.AgentID(id), time.Now())
	}
	return names, err
}

// CheckTranscript verifies the hash chain of a transcript.
func (o OwnerAPI) CheckTranscript(ctx context.Context, peer, id string) error {
	return o.n.book.Check(ctx, store.ConvKey{Peer: peer, ID: id}, time.Now())
}

func (n *Node) mode() acl.Mode { return cmp.Or(n.cfg.Policy.Mode, acl.Approval) }

func hexOf(sum [32]byte) string { return hex.EncodeToString(sum[:]) }

// Watch returns a channel of events that closes when stop is called or the node ends. A slow watcher loses events and
// gets an event with [owner.TopicReset] instead. stop may be called twice.
func (n *Node) Watch() (events <-chan owner.Event, stop func()) {
	w, _, _ := n.events.Watch("")
	return w.C, func() { n.events.Unwatch(w) }
}

// topicOf maps a record namespace to the list that shows its records.
var topicOf = map[string]owner.Topic{
	nsInbox: owner.TopicInbox, acl.AskNamespace: owner.TopicApprovals, nsOutbox: owner.TopicOutbox, "notices": owner.TopicNotices,
	"rules": owner.TopicPeers, "recipients": owner.TopicPeers, nsAliases: owner.TopicPeers,
}

const stateDeleted = "deleted" // of an event about a record that is gone

// eventsOf returns an event for each record in a namespace of topicOf, and one for each conversation that the terms of
// such a record name: "conv/…" for questions, "conv:…" for other records.
func eventsOf(changes []store.Change) []owner.Event {
	var list []owner.Event
	reported := make(map[string]bool, 1)
	for _, c := range changes {
		topic, ok := topicOf[c.Record.NS]
		if !ok {
			continue
		}
		if topic == owner.TopicInbox {
			if c.Delete && c.IfRev != store.Any { // the item moved
				continue
			}
			c.Record.Key = idAt(c.Record.Key)
		}
		// The search in the body may also find a payload with an address. It is cheaper than decoding every item.
		ev := owner.Event{Topic: topic, ID: c.Record.Key, Foreign: topic == owner.TopicInbox && bytes.Contains(c.Record.Body, []byte(`"address":`))}
		for _, term := range c.Record.Terms {
			if state, ok := strings.CutPrefix(term, "state:"); ok {
				ev.State = state
			}
			conv, ok := strings.CutPrefix(strings.Replace(term, "conv/", "conv:", 1), "conv:")
			if !ok {
				continue
			}
			ev.Peer, ev.Conversation, _ = strings.Cut(conv, "/")
			if !reported[conv] {
				reported[conv] = true
				list = append(list, owner.Event{Topic: owner.TopicConversations, ID: ev.Conversation, Peer: ev.Peer, Conversation: ev.Conversation})
			}
		}
		if c.Delete {
			ev.State = stateDeleted
		}
		list = append(list, ev)
	}
	return list
}
