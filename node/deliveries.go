package node

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/outbox"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

// deliveries schedules the outbox entries and passes the outcome of an attempt to the caller that waits for it.
type deliveries struct {
	*outbox.Scheduler
	log      *slog.Logger
	waiters  waiting.Results[Sent]          // by entry id: the outcome of the next attempt
	released waiting.Results[queuedMessage] // by question: approved messages, for the callers that wait for them
	linked   bool                           // the links to foreign networks run in this process, see [Node.Run]
}

func newDeliveries(n *Node) *deliveries {
	load := func(ctx context.Context, after string, limit int) ([]outbox.Entry, string, error) {
		stored, next, err := n.listEntries(ctx, "state:"+string(SendQueued), after, limit)
		entries := make([]outbox.Entry, len(stored))
		for i, e := range stored {
			entries[i] = e.queueEntry()
			if e.Awaits != "" && n.outbox.linked {
				entries[i].Due = time.Now() // what the entry awaits may be there already
			}
		}
		return entries, next, err
	}
	return &deliveries{Scheduler: outbox.New(outbox.Config{Load: load, Attempt: n.attempt, Logger: n.log}), log: n.log}
}

func (e OutboxEntry) queueEntry() outbox.Entry {
	return outbox.Entry{ID: e.ID, Conv: e.key(), Due: e.Due, InFlight: e.InFlight}
}

// onCommit schedules the entries that a committed unit adds to the outbox. A change of another process has IfRev Any;
// for such a change, onCommit also wakes the callers that wait for an attempt.
func (d *deliveries) onCommit(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != nsOutbox || c.Delete || c.IfRev != store.Absent && c.IfRev != store.Any {
			continue
		}
		e, err := decodeEntry(c.Record)
		if err != nil {
			d.log.Error("read outbox entry", entryLogKey, c.Record.Key, "err", err) // a bug: this node wrote the record
			continue
		}
		if c.IfRev == store.Absent {
			d.Add(e.queueEntry())
			continue
		}
		if e.State == SendQueued {
			d.AddRemote(e.queueEntry())
		}
		if e.State != SendQueued || e.Err != nil && !e.InFlight { // an attempt by the other process has ended
			d.waiters.Give(e.ID, e.sent())
		}
	}
}

// Deliver delivers the outbox until ctx ends. It is for a command that opens the node for a moment and must not do the
// rest of [Node.Run]: answer messages, register cards or run hooks. Deliver takes no lease. If a process holds
// [Lease], or the leases cannot be read, Deliver returns without a delivery.
func (n *Node) Deliver(ctx context.Context) {
	held, err := n.store.Leases().List(ctx)
	if err != nil || slices.ContainsFunc(held, func(s store.LeaseState) bool { return s.Name == Lease }) {
		n.outbox.Skip()
		return
	}
	n.outbox.Run(ctx)
}

// AwaitAttempts waits until no entry is due or in flight, or until ctx ends. Call it while Deliver runs.
func (n *Node) AwaitAttempts(ctx context.Context) {
	const pollEvery = 20 * time.Millisecond
	for n.outbox.IsBusy(time.Now()) && waiting.Pause(ctx, pollEvery) {
	}
}
