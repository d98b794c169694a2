package node

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// duties is the work that only one process of the node does at a time, such as delivering the outbox. Its methods also
// watch the changes of all processes.
type duties struct{ n *Node }

// Lease is the name of the lease under which one process has the duties of a node.
const Lease = "node"

// Run runs the node until ctx ends, and returns when everything that it started has stopped. Every process receives and
// serves. Only the process that holds [Lease] does the duties; a follower never takes the lease. Run returns an error
// if it cannot store at the end how much of the rate limits is used.
func (n *Node) Run(ctx context.Context) error {
	n.running.Store(true)
	var background sync.WaitGroup
	background.Go(func() { n.store.Follow(ctx) })
	background.Go(func() { n.audit.Run(ctx) })
	var err error
	if !n.cfg.Follower {
		background.Go(func() {
			n.session.Do(ctx, Lease, func(ctx context.Context) {
				duties{n}.run(ctx)
				err = n.saveMeter(context.WithoutCancel(ctx), time.Now())
			})
		})
	}
	<-ctx.Done()
	n.events.Close()
	n.runs.Stop()
	background.Wait()
	return err
}

// run does all duties until ctx ends.
func (d duties) run(ctx context.Context) {
	n := d.n
	var all sync.WaitGroup
	all.Go(func() { n.runs.Run(ctx) })
	all.Go(func() { recovery{n}.run(ctx) })
	n.outbox.linked.Store(true) // the links to foreign networks run in the process with the duties
	all.Go(func() { n.work.Run(ctx) })
	all.Go(func() { n.registrar.Run(ctx) })
	all.Go(func() { n.housekeep(ctx) })
	for _, d := range n.cfg.Directories {
		all.Go(func() { mailbox{n}.read(ctx, d) })
	}
	all.Wait()
}

// claimRun marks item as handled by a hook in this process. If another process has the node's duties, claimRun leaves
// the hook to that process: it makes the item wait and returns false.
func (n *Node) claimRun(item *Item) bool {
	if n.session.IsElsewhere(Lease) {
		item.State, item.RetryAt = owner.ItemWaiting, time.Time{}
		return false
	}
	item.State, item.Runner, item.lease = owner.ItemRunning, n.runs.ID(), n.session.Held(Lease)
	item.Attempt++
	return true
}

// observe connects the parts of the node to the committed changes of all processes.
func (d duties) observe() {
	n := d.n
	n.store.OnCommit(func(changes []store.Change) {
		touches := func(ns string) bool {
			return slices.ContainsFunc(changes, func(c store.Change) bool { return c.Record.NS == ns })
		}
		if touches(nsInbox) {
			n.inboxChanged.Broadcast()
		}
		n.events.Publish(eventsOf(changes)...)
		d.readState(changes)
		n.notices.OnCommit(changes)
		if touches(nsInbox) || touches(nsOutbox) || touches(acl.AskNamespace) {
			d.openGates(changes)
		}
		n.outbox.onCommit(changes)
		n.asks.AfterCommit(changes)
	}, nsInbox, nsState, nsAliases, "rules", "recipients", acl.AskNamespace, notify.Namespace, nsOutbox)
	n.store.OnRemote(nsState, n.registrar.OnRemote)
	n.store.OnLoss(d.rereadAll)
}

// readState applies a stored change of the flags that all processes share: that the node is paused, and that open
// conversations take all the space.
func (d duties) readState(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS == nsState && !c.Delete && (c.Record.Key == keyPaused || c.Record.Key == keyOverfull) {
			if err := d.n.takeState(c.Record); err != nil {
				d.n.log.Error("state cannot be read; this process keeps what it has", "err", err)
			}
		}
	}
}

// rereadAll makes every part of the node read the store, because changes of other processes may have been missed.
func (d duties) rereadAll() {
	n := d.n
	n.events.Publish(owner.Event{Topic: owner.TopicReset})
	n.inboxChanged.Broadcast()
	ctx, now := context.Background(), time.Now()
	if err := errors.Join(n.restoreState(ctx, now), n.registrar.Reread(ctx, now)); err != nil {
		n.log.Warn("state cannot be read; tries again", "err", err)
		n.store.RereadLater()
	}
}

const (
	nsState     = "node" // small state of the node itself
	keyMeter    = "meter"
	keyPaused   = "paused"
	keyOverfull = "overfull"  // open conversations alone exceed MaxBytes
	meterEvery  = time.Minute // AM-44
	sweepEvery  = 10 * time.Minute
)

// restore reads the state that an earlier process stored.
func (n *Node) restore(ctx context.Context) error {
	now := time.Now()
	recs := n.store.Records()
	switch r, err := recs.Get(ctx, nsState, keyMeter, now); {
	case err == nil:
		if err := n.meter.Restore(r.Body, now); err != nil {
			n.log.Warn("the stored use of the rate limits cannot be read; the limits start unused", "err", err)
		}
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	if err := n.restoreState(ctx, now); err != nil {
		return err
	}
	return n.registrar.Restore(ctx, now)
}

// restoreState reads the state that the processes of the node share.
func (n *Node) restoreState(ctx context.Context, now time.Time) error {
	for _, key := range []string{keyPaused, keyOverfull} {
		r, err := n.store.Records().Get(ctx, nsState, key, now)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err == nil {
			err = n.takeState(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeState applies a stored flag to this process.
func (n *Node) takeState(r store.Record) error {
	on, err := store.Decode[bool](r)
	if err != nil {
		return err
	}
	if r.Key == keyOverfull {
		n.overfull.Store(on)
	} else if n.paused.Swap(on) != on {
		n.events.Publish(owner.Event{Topic: owner.TopicStatus})
	}
	return nil
}

// SetPause pauses or resumes the node durably (AM-86). While the node is paused, line 5 of the receive table
// (docs/protocol.md) refuses every message. The argument by is the command or page that the owner used.
func (n *Node) SetPause(ctx context.Context, paused bool, by string) error {
	entry := acl.AuditEntry{At: time.Now(), Kind: acl.AuditResume, By: by}
	if paused {
		entry.Kind = acl.AuditPause
	}
	return n.saveState(ctx, keyPaused, strconv.AppendBool(nil, paused), entry.At, n.audit.Change(entry)) // takeState applies it after the commit
}

// IsPaused reports whether the node refuses all messages.
func (n *Node) IsPaused() bool { return n.paused.Load() }

func (n *Node) saveState(ctx context.Context, key string, body []byte, now time.Time, more ...store.Change) error {
	change := store.Change{Record: store.Record{NS: nsState, Key: key, Body: body}, IfRev: store.Any}
	return n.store.Records().Apply(ctx, append(more, change), now)
}

// saveMeter stores how much of the limits is used, if that has changed. It does nothing if another process holds
// [Lease].
func (n *Node) saveMeter(ctx context.Context, now time.Time) error {
	usage := n.meter.Snapshot(now)
	if bytes.Equal(usage, n.savedMeter) || n.session.IsElsewhere(Lease) {
		return nil
	}
	if err := n.saveState(ctx, keyMeter, usage, now); err != nil {
		return err
	}
	n.savedMeter = usage
	return nil
}

// housekeep stores the use of the limits and does the node's periodic work (AM-44, AM-23).
func (n *Node) housekeep(ctx context.Context) {
	meter, sweep := time.Tick(meterEvery), time.Tick(sweepEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-meter:
			if err := n.saveMeter(ctx, now); err != nil && ctx.Err() == nil {
				n.log.Warn("use of the rate limits not stored; it counts again after a crash", "err", err)
			}
		case now := <-sweep:
			if n.clock.Reliable() { // a wrong clock must not delete what is still valid
				n.sweep(ctx, now)
			}
		}
	}
}

// sweep removes expired records, warns the owner of what will soon expire, and trims the conversations.
func (n *Node) sweep(ctx context.Context, now time.Time) {
	if err := n.clock.Sweep(ctx, n.store); err != nil {
		n.log.Warn("sweep failed; expired records stay until the next one", "err", err)
		return
	}
	if err := n.warnOfListings(ctx, now); err != nil {
		n.log.Warn("owner not warned of listings that expire; the next sweep tries again", "err", err)
	}
	if err := n.trim(ctx, now); err != nil {
		n.log.Warn("old conversations not removed; the next sweep tries again", "err", err)
	}
}

// settleExpiredItem settles an item if its question has expired or was deleted. If the question was about the answer or
// about another run of the hook, the item fails, and the owner can still answer it.
func (n *Node) settleExpiredItem(ctx context.Context, item Item, now time.Time) error {
	ask, err := n.asks.Get(ctx, item.Ask, now)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	case err == nil && ask.Kind == owner.AskMessage && (ask.State == acl.AskApproved || ask.State == acl.AskRejected):
		_, err := n.resolveQueuedAsk(ctx, ask) // the first question of the decision was deleted with its conversation
		return err
	case err == nil && ask.State != acl.AskExpired:
		if item.Due = now.Add(time.Minute); ask.Expires.After(item.Due) {
			item.Due = ask.Expires
		}
		return n.storeItem(ctx, item)
	}
	switch {
	case item.State == owner.ItemInterrupted:
		item.State, item.Note = owner.ItemFailed, "nobody decided in time whether the agent may run again"
	case ask.Kind == owner.AskOutgoing, ask.Kind == owner.AskTask:
		item.State, item.Note = owner.ItemFailed, "nobody decided in time whether the answer may leave"
	default:
		item.State = owner.ItemExpired
	}
	if err == nil && !ask.Displaced.IsZero() { // the question made room for another one before its time
		err = n.endHold(ctx, item, ask, now)
	} else {
		err = n.storeItem(ctx, item)
	}
	if isConflict(err) {
		return nil
	}
	return err
}

// endHold stores an item whose hold ended before its question would have expired. From then on, the question no longer
// keeps the conversation open.
func (n *Node) endHold(ctx context.Context, item Item, ask acl.Ask, now time.Time) error {
	return n.book.Try(ctx, item.key(), now, func(u *conversations.Unit) error {
		u.Add(item.change())
		if u.IsNew() {
			return nil
		}
		return u.Record(conversations.Event{Kind: conversations.HoldEnded, At: now, Until: ask.Expires})
	})
}

// trim removes the oldest ended conversations beyond MaxKept and MaxBytes. Open conversations stay. If they alone
// exceed MaxBytes, trim sets n.overfull: strangers cannot add messages until enough conversations have expired.
func (n *Node) trim(ctx context.Context, now time.Time) error {
	total := int64(0)
	for c, err := range n.book.All(ctx, conversations.Filter{State: conversations.Open}, now) {
		if err != nil {
			return err
		}
		total += c.Bytes
	}
	if overfull := total > n.cfg.MaxBytes; overfull != n.overfull.Load() {
		if err := n.saveState(ctx, keyOverfull, strconv.AppendBool(nil, overfull), now); err != nil {
			return err
		}
	}
	kept := 0
	for c, err := range n.book.All(ctx, conversations.Filter{}, now) {
		if err != nil {
			return err
		}
		kept++
		if c.State == conversations.Open {
			continue
		}
		if total += c.Bytes; kept <= n.cfg.MaxKept && total <= n.cfg.MaxBytes {
			continue
		}
		if err := n.deleteConversation(ctx, c.Key); err != nil && !isConflict(err) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// deleteConversation removes a conversation with its inbox items, its ended outbox entries and its questions. Outbox
// entries that still wait are delivered nevertheless.
func (n *Node) deleteConversation(ctx context.Context, key store.ConvKey) error {
	return n.book.Do(ctx, key, func(u *conversations.Unit) error {
		u.Delete()
		asks, err := n.asks.Forget(ctx, key, u.Now)
		if err != nil {
			return err
		}
		u.Add(asks...)
		for e, err := range n.allEntries(ctx, convTerm(key)) {
			if err != nil {
				return err
			}
			if e.State != owner.SendQueued {
				u.Add(store.Change{Record: store.Record{NS: nsOutbox, Key: e.ID}, IfRev: e.rev, Delete: true})
			}
		}
		items, err := n.itemsOf(ctx, key)
		for _, item := range items {
			u.Add(store.Change{Record: store.Record{NS: nsInbox, Key: item.place(), Terms: []string{convTerm(key)}}, IfRev: store.Any, Delete: true})
			if item.Place != "" {
				u.Add(store.Change{Record: store.Record{NS: nsMoved, Key: item.ID}, IfRev: store.Any, Delete: true})
			}
		}
		return err
	})
}
