package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// BlockFor is how long a call is held.
const BlockFor = door.BlockFor

// SetBlockFor changes how long a call is held.
func (b *Bridge) SetBlockFor(d time.Duration) {
	b.front = door.New(door.Config{Open: b.open, Hub: &b.hub, BlockFor: d})
}

// Waiters returns how many callers wait for a task.
func (b *Bridge) Waiters() int { return b.hub.Waiters() }

// PushesDue returns how many push notification configurations wait for a delivery, or -1 after an error.
func (b *Bridge) PushesDue(ctx context.Context) int {
	page, err := b.records.List(ctx, nsPush, bridge.TermDue, "", 100, time.Now())
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

// FillTasks gives a caller n tasks in a state. The states of tasks t0, t1 and so on are a millisecond apart.
func (b *Bridge) FillTasks(t *testing.T, address string, state sdk.TaskState, n int) {
	var changes []store.Change
	for i := range n {
		at := time.Now().Add(-time.Hour).Truncate(time.Second).Add(time.Duration(i) * time.Millisecond)
		row := taskRow{ID: fmt.Sprint("t", i), Address: address, Context: "c", Conv: wire.ConversationID(fmt.Sprint("conv_x", i)), Log: []logEntry{{State: state, At: at}}}
		changes = append(changes, row.change(time.Now()))
		if len(changes) == 500 || i == n-1 {
			if err := b.records.Apply(t.Context(), changes, time.Now()); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
}

// MakeDue compares a task with its conversation now, and returns when it is compared again; zero: the task has ended.
func (b *Bridge) MakeDue(t *testing.T, id string) time.Time {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		row, err := b.loadTask(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		row.due = store.DueNow
		if err := b.records.Apply(t.Context(), []store.Change{row.change(time.Now())}, time.Now()); errors.Is(err, store.ErrConflict) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		for ; time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if row, err := b.loadTask(t.Context(), id); err != nil {
				t.Fatal(err)
			} else if !row.due.Equal(store.DueNow) {
				return row.due
			}
		}
	}
	t.Fatal("the task is not compared")
	return time.Time{}
}

// sent returns the rows of the calls that wait for an answer.
func (b *Bridge) sent(t *testing.T) (rows []sentRow) {
	for rec, err := range store.AllRecords(t.Context(), b.records, nsSent, bridge.TermDue, time.Now()) {
		row := sentRow{rev: rec.Rev}
		if err := errors.Join(err, json.Unmarshal(rec.Body, &row)); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// SentDue returns how many calls wait for an answer, and how often the first of them was polled.
func (b *Bridge) SentDue(t *testing.T) (n, tries int) {
	rows := b.sent(t)
	if len(rows) > 0 {
		tries = rows[0].Tries
	}
	return len(rows), tries
}

// AwaitSent waits until a call waits for an answer: on a slow machine, that is not yet so when a send returns.
func (b *Bridge) AwaitSent(t *testing.T) {
	for deadline := time.Now().Add(20 * time.Second); len(b.sent(t)) == 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no call waits for an answer")
		}
	}
}

// AgeSent moves the start of every call that waits for an answer into the past by d, and polls its task now.
func (b *Bridge) AgeSent(t *testing.T, d time.Duration) {
	for done := false; !done; {
		done = true
		for _, row := range b.sent(t) {
			row.Started, row.Due = row.Started.Add(-d), time.Now()
			switch err := b.records.Apply(t.Context(), []store.Change{row.change(time.Now())}, time.Now()); {
			case errors.Is(err, store.ErrConflict): // a poll was faster
				done = false
			case err != nil:
				t.Fatal(err)
			}
		}
	}
}

// AwaitPolls waits until every task that was due has been polled.
func (b *Bridge) AwaitPolls(t *testing.T) {
	for deadline := time.Now().Add(10 * time.Second); slices.ContainsFunc(b.sent(t), func(r sentRow) bool { return !r.Due.After(time.Now()) }); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a task is not polled")
		}
	}
}

// ExpireCards makes the bridge fetch every card again before its next use.
func (b *Bridge) ExpireCards(t *testing.T) {
	for rec, err := range store.AllRecords(t.Context(), b.records, nsPeers, "", time.Now()) {
		var known knownAgent
		if err := errors.Join(err, json.Unmarshal(rec.Body, &known)); err != nil {
			t.Fatal(err)
		}
		known.Fetched = time.Time{}
		body, err := json.Marshal(known)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.records.Apply(t.Context(), []store.Change{{IfRev: store.Any, Record: store.Record{NS: nsPeers, Key: rec.Key, Body: body}}}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}

// NameAt returns the name on the card of the agent at a URL.
func (b *Bridge) NameAt(t *testing.T, at string) string {
	base, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	card, err := b.out.readCard(t.Context(), base, client.Loopback)
	if err != nil {
		t.Error(err)
	}
	return card.GetStr("name")
}

// CountRead returns how many messages of its conversation a request for a task keeps in memory, and their bytes.
func (b *Bridge) CountRead(t *testing.T, id string) (n, bytes int) {
	t.Helper()
	rec, err := b.records.Get(t.Context(), nsTasks, id, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	task, err := decodeTask(rec)
	if err != nil {
		t.Fatal(err)
	}
	read := contents{}
	if err := read.add(t.Context(), b.cfg.Store.Steps(), -1, task); err != nil {
		t.Fatal(err)
	}
	for _, e := range read[task.convKey()] {
		if e.N > 0 {
			n, bytes = n+1, bytes+len(e.Raw)
		}
	}
	return n, bytes
}
