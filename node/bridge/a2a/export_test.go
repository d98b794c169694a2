package a2a

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// BlockFor is how long a call is held.
const BlockFor = blockFor

// SetBlockFor changes how long a call is held.
func (b *Bridge) SetBlockFor(d time.Duration) { b.blockFor = d }

// Waiters returns how many callers wait.
func (b *Bridge) Waiters() int {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	return len(b.hub.waiters)
}

// PushesDue returns how many push notification configurations wait for a delivery, or -1 after an error.
func (b *Bridge) PushesDue(ctx context.Context) int {
	page, err := b.records.List(ctx, nsPush, termDue, "", 100, time.Now())
	if err != nil {
		return -1
	}
	return len(page.Records)
}

// AddToken returns a new token for a caller.
func (b *Bridge) AddToken(ctx context.Context, name string) (string, error) {
	t, err := b.addToken(ctx, name)
	return t.Token, err
}

// MaxTasks is how many tasks a caller may have.
const MaxTasks = maxTasks

// RemoveTask removes the row of a task.
func (b *Bridge) RemoveTask(t *testing.T, id string) {
	if err := b.records.Apply(t.Context(), []store.Change{{Record: store.Record{NS: nsTasks, Key: id}, IfRev: store.Any, Delete: true}}, time.Now()); err != nil {
		t.Fatal(err)
	}
}

// FillTasks gives a caller n ended tasks. The states of tasks t0, t1 and so on are a millisecond apart.
func (b *Bridge) FillTasks(t *testing.T, address string, n int) {
	var changes []store.Change
	for i := range n {
		at := time.Now().Add(-time.Hour).Truncate(time.Second).Add(time.Duration(i) * time.Millisecond)
		row := taskRow{ID: fmt.Sprint("t", i), Address: address, Context: "c", Conv: "conv_x", Log: []logEntry{{State: "TASK_STATE_COMPLETED", At: at}}}
		changes = append(changes, row.change(time.Now()))
		if len(changes) == 500 || i == n-1 {
			if err := b.records.Apply(t.Context(), changes, time.Now()); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
}
