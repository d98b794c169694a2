package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/notify"
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
	n.outbox.linked = true // the links to foreign networks run in the process with the duties
	all.Go(func() { n.outbox.Run(ctx) })
	all.Go(func() { n.registrar.Run(ctx) })
	all.Go(func() { n.notices.Run(ctx) })
	all.Go(func() { n.housekeep(ctx) })
	all.Go(func() { n.runs.Retries.Run(ctx, hookRetries{n}.try) })
	all.Go(func() { n.expiryAlarm.Watch(ctx, n.settleExpiredAsks) })
	if n.cfg.Agreed != nil {
		all.Go(func() { n.cfg.Agreed.Run(ctx) })
	}
	for _, d := range n.cfg.Directories {
		all.Go(func() { mailbox{n}.read(ctx, d) })
	}
	all.Wait()
}

// claimRun marks item as handled by a hook in this process. If another process has the node's duties, claimRun leaves
// the hook to that process: it makes the item wait and returns false.
func (n *Node) claimRun(item *Item) bool {
	if n.session.IsElsewhere(Lease) {
		item.State, item.RetryAt = ItemWaiting, time.Time{}
		return false
	}
	item.State, item.Runner, item.lease = ItemRunning, n.runs.ID(), n.session.Held(Lease)
	item.Attempt++
	return true
}

// observe connects the parts of the node to the committed changes of all processes.
func (d duties) observe() {
	n := d.n
	n.store.OnCommit(func(changes []store.Change) {
		if slices.ContainsFunc(changes, func(c store.Change) bool { return c.Record.NS == nsInbox }) {
			n.inboxChanged.Broadcast()
		}
		if slices.ContainsFunc(changes, isWaitingItem) {
			n.runs.Retries.Changed()
		}
		n.events.Publish(eventsOf(changes)...)
		n.bridges.reportCommit(changes)
		d.readState(changes)
		n.expiryAlarm.AfterCommit(changes)
		n.notices.OnCommit(changes)
		n.outbox.onCommit(changes)
		n.asks.AfterCommit(changes)
		if n.cfg.Agreed != nil {
			n.cfg.Agreed.OnCommit(changes)
		}
	}, nsInbox, nsState, nsAliases, "rules", "recipients", acl.AskNamespace, notify.Namespace, nsOutbox, calendar.Namespace)
	n.store.OnRemote(nsState, n.registrar.OnRemote)
	n.store.OnLoss(d.rereadAll)
}

func isWaitingItem(c store.Change) bool {
	return c.Record.NS == nsInbox && slices.Contains(c.Record.Terms, stateTerm(ItemWaiting))
}

// readState applies a stored change of the flags that all processes share: that the node is paused, and that open
// conversations take all the space.
func (d duties) readState(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS == nsState && !c.Delete && (c.Record.Key == keyPaused || c.Record.Key == keyOverfull) {
			if err := d.n.takeState(c.Record); err != nil {
				d.n.log.Error("read state", "err", err)
			}
		}
	}
}

// rereadAll makes every part of the node read the store, because changes of other processes may have been missed.
func (d duties) rereadAll() {
	n := d.n
	n.events.Publish(Event{Topic: TopicReset})
	n.inboxChanged.Broadcast()
	n.runs.Retries.Changed()
	n.expiryAlarm.Advance(time.Now())
	n.notices.Wake()
	n.outbox.Reload()
	if n.cfg.Agreed != nil {
		n.cfg.Agreed.Wake()
	}
	ctx, now := context.Background(), time.Now()
	if err := errors.Join(n.restoreState(ctx, now), n.registrar.Reread(ctx, now)); err != nil {
		n.log.Warn("read state", "err", err)
		n.store.RereadLater()
	}
}
