package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/outbox"
	"github.com/agentmesh/agentmesh/store"
)

// deliveries schedules the outbox entries and tells waiting callers about their outcome.
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

func (d *deliveries) unwatch(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiters, id)
}

func (d *deliveries) notifyWaiter(id string, sent Sent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ch := d.waiters[id]; ch != nil {
		ch <- sent // does not block: the channel has room for one value, and gets one
		delete(d.waiters, id)
	}
}

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
			d.log.Error("read outbox entry", "letter", c.Record.Key, "err", err) // this node wrote the record
			continue
		}
		d.Add(e.queueEntry())
	}
}

// Deliver works on the outbox until ctx ends, and does nothing else that [Node.Run] does. It is for a command that
// opens the node for a moment and must not answer messages, register or run hooks.
func (n *Node) Deliver(ctx context.Context) { n.outbox.Run(ctx) }

// AwaitAttempts waits until every due entry was tried once, or until ctx ends. It is for a caller of Deliver.
func (n *Node) AwaitAttempts(ctx context.Context) {
	const look = 20 * time.Millisecond
	for n.outbox.IsBusy(time.Now()) && pause(ctx, look) {
	}
}
