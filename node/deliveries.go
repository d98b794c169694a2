package node

import (
	"context"
	"log/slog"
	"sync"

	"github.com/agentmesh/agentmesh/node/outbox"
	"github.com/agentmesh/agentmesh/store"
)

// deliveries is the outbox at work: when which letter is delivered, and who waits for what comes of it.
type deliveries struct {
	*outbox.Scheduler
	log *slog.Logger

	mu      sync.Mutex
	waiters map[string]chan<- Sent // by letter
}

func newDeliveries(n *Node) *deliveries {
	load := func(ctx context.Context, after string, limit int) ([]outbox.Entry, string, error) {
		letters, next, err := n.letters(ctx, "state:"+string(SendQueued), after, limit)
		entries := make([]outbox.Entry, len(letters))
		for i, l := range letters {
			entries[i] = l.entry()
		}
		return entries, next, err
	}
	return &deliveries{
		Scheduler: outbox.New(outbox.Config{Load: load, Attempt: n.attempt, Logger: n.log}), log: n.log, waiters: make(map[string]chan<- Sent),
	}
}

// watch returns a channel that gets what the next attempt for the letter brings. It must be taken back by unwatch.
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

func (d *deliveries) tell(id string, sent Sent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ch := d.waiters[id]; ch != nil {
		ch <- sent // it has room for one, and is told once
		delete(d.waiters, id)
	}
}

func (l Letter) entry() outbox.Entry {
	return outbox.Entry{ID: l.ID, Conv: l.key(), Due: l.Due, InFlight: l.InFlight}
}

// committed has the letters delivered that a committed unit puts into the outbox.
func (d *deliveries) committed(changes []store.Change) {
	for _, c := range changes {
		if c.Record.NS != nsOutbox || c.Delete || c.IfRev != store.Absent {
			continue
		}
		l, err := decodeLetter(c.Record)
		if err != nil {
			d.log.Error("read letter", "letter", c.Record.Key, "err", err) // we wrote it
			continue
		}
		d.Add(l.entry())
	}
}
