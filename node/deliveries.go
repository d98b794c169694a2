package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/outbox"
	"github.com/agentmesh/agentmesh/store"
)

// deliveries schedules the outbox entries and passes the outcome of an attempt to the caller that waits for it.
type deliveries struct {
	*outbox.Scheduler
	log *slog.Logger

	mu      sync.Mutex
	waiters map[string]chan<- Sent // by entry id
}

func newDeliveries(n *Node) *deliveries {
	load := func(ctx context.Context, after string, limit int) ([]outbox.Entry, string, error) {
		stored, next, err := n.listEntries(ctx, "state:"+string(SendQueued), after, limit)
		entries := make([]outbox.Entry, len(stored))
		for i, e := range stored {
			entries[i] = e.queueEntry()
		}
		return entries, next, err
	}
	return &deliveries{
		Scheduler: outbox.New(outbox.Config{Load: load, Attempt: n.attempt, Logger: n.log}), log: n.log, waiters: make(map[string]chan<- Sent),
	}
}

// watch returns a channel that receives the outcome of the entry's next attempt. The caller must call unwatch.
func (d *deliveries) watch(id string) <-chan Sent {
	ch := make(chan Sent, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiters[id] = ch
	return ch
}

// unwatch ends the watch of an entry.
func (d *deliveries) unwatch(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiters, id)
}

// notifyWaiter passes the outcome of an attempt to the caller that watches the entry, if there is one.
func (d *deliveries) notifyWaiter(id string, sent Sent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ch := d.waiters[id]; ch != nil {
		ch <- sent // does not block: the channel has room for one value, and gets one
		delete(d.waiters, id)
	}
}

// queueEntry returns what the scheduler needs to know about the entry.
func (e OutboxEntry) queueEntry() outbox.Entry {
	return outbox.Entry{ID: e.ID, Conv: e.key(), Due: e.Due, InFlight: e.InFlight}
}

// onCommit schedules the entries that a committed unit adds to the outbox.
func (d *deliveries) onCommit(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != nsOutbox || c.Delete || c.IfRev != store.Absent {
			continue
		}
		e, err := decodeEntry(c.Record)
		if err != nil {
			d.log.Error("read outbox entry", "letter", c.Record.Key, "err", err) // a bug: this node wrote the record
			continue
		}
		d.Add(e.queueEntry())
	}
}

// Deliver delivers the outbox until ctx ends. It does only this part of [Node.Run], for a command that opens the node
// for a moment and must not answer messages, register cards or run hooks.
func (n *Node) Deliver(ctx context.Context) { n.outbox.Run(ctx) }

// AwaitAttempts waits until no entry is due or in flight, or until ctx ends. Call it while Deliver runs.
func (n *Node) AwaitAttempts(ctx context.Context) {
	const pollEvery = 20 * time.Millisecond
	for n.outbox.IsBusy(time.Now()) && pause(ctx, pollEvery) {
	}
}
