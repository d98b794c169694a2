package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsTasks has the rows of tasks, by task id.
const nsTasks = "a2a/tasks"

// Bounds of the tasks of one caller.
const (
	maxTasks    = 1000
	maxMessages = 64  // of a task
	maxLog      = 128 // states of a task
	keepEnded   = 7 * 24 * time.Hour
	keepOpen    = 45 * 24 * time.Hour // longer than a conversation lives
)

// taskRow is a task. The transcript of its conversation has the messages.
type taskRow struct {
	ID       string              `json:"id"`
	Address  string              `json:"address"` // of the caller
	Context  string              `json:"context"` // as the caller knows the conversation
	Conv     wire.ConversationID `json:"conv"`
	Messages []wire.MessageID    `json:"messages,omitempty"` // of the caller, oldest first
	Log      []logEntry          `json:"log"`                // states, oldest first; never empty
	Mesh     bool                `json:"mesh,omitempty"`     // the caller supports our extension

	rev store.Rev
	due time.Time // of an open task: when it is compared with its conversation, see [Bridge.sync]
}

// logEntry is a state of a task.
type logEntry struct {
	State a2a.TaskState  `json:"state"`
	At    time.Time      `json:"at"`
	Text  string         `json:"text,omitempty"`  // a fixed text of ours
	Reply wire.MessageID `json:"reply,omitempty"` // our message that brought the state

	Direct bool `json:"direct,omitempty"` // see [message.Reply]
}

func (t *taskRow) last() logEntry { return t.Log[len(t.Log)-1] }

// enter adds a state, and makes the task due soon. If the task has too many states, enter drops the oldest one without a message of ours, or else
// the oldest one.
func (t *taskRow) enter(entry logEntry, now time.Time) {
	entry.At = now.UTC()
	if last := t.last().At; !entry.At.After(last) {
		entry.At = last.Add(time.Millisecond) // states have an order, whatever the clock does
	}
	if len(t.Log) >= maxLog {
		i := max(0, slices.IndexFunc(t.Log, func(e logEntry) bool { return e.Reply == "" }))
		t.Log = slices.Delete(t.Log, i, i+1)
	}
	t.Log, t.due = append(t.Log, entry), now.Add(closeTime)
}

// hasReply reports whether our message with this id brought a state of the task.
func (t *taskRow) hasReply(id wire.MessageID) bool {
	return slices.ContainsFunc(t.Log, func(e logEntry) bool { return e.Reply == id })
}

// convKey returns the key of the task's conversation.
func (t *taskRow) convKey() store.ConvKey {
	a, _ := bridge.ParseAddress(t.Address)
	return store.ConvKey{Peer: string(a.Pseudonym()), ID: string(t.Conv)}
}

// change returns the change that stores the task.
func (t *taskRow) change(now time.Time) store.Change {
	rec := store.Record{
		NS: nsTasks, Key: t.ID, Body: wire.MustMarshal(t), Expires: now.Add(keepEnded),
		Terms: []string{callerTerm(t.Address), contextTerm(t.Address, t.Context), convTerm(t.convKey())},
	}
	if !t.last().State.Terminal() {
		rec.Terms, rec.Expires, rec.Due, rec.Party = append(rec.Terms, termOpen), now.Add(keepOpen), t.due, t.Address
	}
	return store.Change{IfRev: t.rev, Max: maxTasks, Record: rec}
}

const termOpen = "open" // of the tasks that have not ended

func callerTerm(address string) string           { return "of:" + wire.HashOf(address) }
func contextTerm(address, context string) string { return "ctx:" + wire.HashOf(address, context) }
func convTerm(key store.ConvKey) string          { return "conv:" + wire.HashOf(key.Peer, key.ID) }

func decodeTask(rec store.Record) (*taskRow, error) {
	t := &taskRow{rev: rec.Rev, due: rec.Due}
	if err := json.Unmarshal(rec.Body, t); err != nil {
		return nil, err
	}
	if len(t.Log) == 0 {
		return nil, errors.New("a task without a state")
	}
	return t, nil
}

// loadTask returns a task, or message.ErrTaskNotFound if it does not exist.
func (b *Bridge) loadTask(ctx context.Context, id string) (*taskRow, error) {
	rec, err := b.records.Get(ctx, nsTasks, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, message.ErrTaskNotFound
	}
	if err != nil {
		return nil, err
	}
	return decodeTask(rec)
}

// findTask returns a task, or message.ErrTaskNotFound if it does not exist or belongs to another caller (A2A-14).
func (b *Bridge) findTask(ctx context.Context, address, id string) (*taskRow, error) {
	t, err := b.loadTask(ctx, id)
	if err == nil && t.Address != address {
		return nil, message.ErrTaskNotFound
	}
	return t, err
}

// tasksWith returns the tasks with a term, newest state first.
func (b *Bridge) tasksWith(ctx context.Context, term string) ([]*taskRow, error) {
	var out []*taskRow
	for t, err := range store.DecodeAll(ctx, b.records, nsTasks, term, time.Now(), decodeTask) {
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y *taskRow) int { return cmp.Or(y.last().At.Compare(x.last().At), cmp.Compare(x.ID, y.ID)) })
	return out, nil
}

// advance adds a state to a task, in one transaction with the push notifications about it, and wakes the task's
// waiters. A task that has ended stays as it is. next returns the new state, or false if the state stays; it may also
// change when the task is due.
func (b *Bridge) advance(ctx context.Context, id string, next func(*taskRow) (logEntry, bool)) error {
	for {
		now := time.Now()
		t, err := b.loadTask(ctx, id)
		if errors.Is(err, message.ErrTaskNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		due, last := t.due, t.last()
		entry, ok := next(t)
		var changes []store.Change
		switch {
		case last.State.Terminal(), entry.Reply != "" && t.hasReply(entry.Reply):
			return nil
		case ok && (entry.Reply != "" || entry.State != last.State || entry.Text != last.Text):
			t.enter(entry, now)
			if changes, err = b.pushChanges(ctx, t, now); err != nil {
				return err
			}
		case t.due.Equal(due):
			return nil
		default:
			ok = false
		}
		err = b.records.Apply(ctx, append(changes, t.change(now)), now)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err == nil && ok {
			if entry.State.Terminal() {
				b.full.Delete(t.Address)
			}
			b.hub.Changed(id, entry.State == a2a.TaskStateWorking && entry.Reply == "")
		}
		return err
	}
}

// advanceAll adds a state to each of the tasks that has not ended.
func (b *Bridge) advanceAll(ctx context.Context, tasks []*taskRow, entry logEntry) error {
	for _, t := range tasks {
		if err := b.advance(ctx, t.ID, func(*taskRow) (logEntry, bool) { return entry, true }); err != nil {
			return err
		}
	}
	return nil
}

// answer records a message of ours in the task that it belongs to: the one whose message it answers, or else the newest
// open task of the conversation. Without such a task, or if it has ended, answer makes a new one, so that the caller
// can find the message; a receipt gets no new task. A close ends every task of the conversation.
func (b *Bridge) answer(ctx context.Context, d bridge.Delivery) error {
	key := store.ConvKey{Peer: string(d.To), ID: string(d.Message.Conversation)}
	tasks, err := b.tasksWith(ctx, convTerm(key))
	if err != nil {
		return err
	}
	answered := conversations.AnswersIn(d.Message.Payload) // id of the message that ours answers, or ""
	const withPayload = false
	reply := message.ReadReply(d.Message.Intent, d.Message.Payload, string(d.Message.ID), withPayload)
	entry := logEntry{State: reply.State, Reply: d.Message.ID, Direct: reply.Direct}
	if d.Message.Action() == wire.ActionClose {
		return b.advanceAll(ctx, tasks, entry)
	}
	i := slices.IndexFunc(tasks, func(t *taskRow) bool { return answered != "" && slices.Contains(t.Messages, answered) })
	if i < 0 {
		i = slices.IndexFunc(tasks, func(t *taskRow) bool { return !t.last().State.Terminal() })
	}
	switch {
	case i >= 0 && reply.Receipt:
		return b.syncReceipt(ctx, tasks[i], key, d.Message.ID)
	case reply.Receipt:
		return nil
	case slices.ContainsFunc(tasks, func(t *taskRow) bool { return t.hasReply(d.Message.ID) }):
		return nil // an earlier attempt stored the message
	case i >= 0 && !tasks[i].last().State.Terminal():
		return b.advance(ctx, tasks[i].ID, func(*taskRow) (logEntry, bool) { return entry, true })
	}
	now := time.Now()
	t := &taskRow{
		ID: taskIDOf(d.Address, string(d.Message.ID)), Address: d.Address, Context: string(d.Message.Conversation), Conv: d.Message.Conversation, Mesh: true,
	}
	if len(tasks) > 0 {
		t.Context, t.Mesh = tasks[0].Context, tasks[0].Mesh
	}
	if entry.State == a2a.TaskStateWorking {
		entry.State = a2a.TaskStateCompleted // nobody asked for work
	}
	entry.At = now.UTC()
	t.Log, t.due = []logEntry{entry}, now.Add(closeTime)
	err = b.records.Apply(ctx, []store.Change{t.change(now)}, now)
	if errors.Is(err, store.ErrQuota) && b.evict(ctx, d.Address) == nil {
		err = b.records.Apply(ctx, []store.Change{t.change(now)}, now)
	}
	return err
}

// syncReceipt updates a task after a receipt of ours. A receipt says that a hook, the program behind the node, handled
// the message and had nothing to say, or that the message is in the owner's inbox.
func (b *Bridge) syncReceipt(ctx context.Context, t *taskRow, key store.ConvKey, reply wire.MessageID) error {
	items, err := b.cfg.Mesh.Items(ctx, key)
	if err != nil {
		return err
	}
	return b.advance(ctx, t.ID, func(t *taskRow) (logEntry, bool) {
		entry := logEntry{State: a2a.TaskStateSubmitted, Reply: reply}
		if item, ok := t.item(items); ok && item.State == owner.ItemAnswered {
			entry.State = a2a.TaskStateCompleted
		}
		return entry, true
	})
}

// item returns the inbox item of the newest message of the task.
func (t *taskRow) item(items []bridge.ItemState) (bridge.ItemState, bool) {
	for _, item := range items {
		if len(t.Messages) > 0 && item.MessageID == t.Messages[len(t.Messages)-1] {
			return item, true
		}
	}
	return bridge.ItemState{}, false
}

// itemStates maps states of inbox items to states of tasks. Other items come with a message of ours, or change nothing.
var itemStates = map[owner.ItemState]logEntry{
	owner.ItemHeld:      {State: a2a.TaskStateWorking, Text: message.TextWaits},
	owner.ItemRunning:   {State: a2a.TaskStateWorking, Text: message.TextWorking},
	owner.ItemWaiting:   {State: a2a.TaskStateWorking, Text: message.TextLater},
	owner.ItemRead:      {State: a2a.TaskStateCompleted},
	owner.ItemFailed:    {State: a2a.TaskStateFailed, Text: message.TextFailed},
	owner.ItemExpired:   {State: a2a.TaskStateFailed, Text: message.TextExpired},
	owner.ItemWithdrawn: {State: a2a.TaskStateCanceled, Text: message.TextCanceled},
}

// sync gives the open tasks of a conversation the state that the inbox, or else the end of the conversation, demands. It
// runs when an item of the inbox changes, and when a task is due: after its conversation may have ended by itself.
func (b *Bridge) sync(ctx context.Context, key store.ConvKey) error {
	tasks, err := b.tasksWith(ctx, convTerm(key))
	if err != nil || !slices.ContainsFunc(tasks, func(t *taskRow) bool { return !t.last().State.Terminal() }) {
		return err
	}
	items, err := b.cfg.Mesh.Items(ctx, key)
	if err != nil {
		return err
	}
	end, isOpen, next, err := b.endOf(ctx, key)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		err := b.advance(ctx, t.ID, func(t *taskRow) (logEntry, bool) {
			if next.Before(t.due) || !t.due.After(time.Now()) {
				t.due = next
			}
			item, ok := t.item(items)
			entry, known := itemStates[item.State]
			switch {
			case !ok, !known:
			case t.last().State == a2a.TaskStateInputRequired && !entry.State.Terminal(): // our question stays
			case item.State == owner.ItemFailed && !isOpen: // the end of the conversation stopped the hook
			default:
				return entry, true
			}
			return end, end.State != ""
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// closeTime is how long the open tasks of a closed conversation wait for our close, which comes as a delivery and
// decides how they end. An open task is compared with its conversation so long after each new state, and then when the
// conversation may have ended.
const closeTime = time.Minute

// endOf returns the state that the end of a conversation gives to its open tasks, and whether the conversation is open.
// The entry has no state if the conversation is open, or was closed less than closeTime ago; next is when that may
// change without a message.
func (b *Bridge) endOf(ctx context.Context, key store.ConvKey) (end logEntry, isOpen bool, next time.Time, err error) {
	now := time.Now()
	next, end = now.Add(closeTime), logEntry{State: a2a.TaskStateCanceled, Text: message.TextCanceled}
	row, err := b.cfg.Store.Steps().Conversation(ctx, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return end, false, next, nil
	}
	if err != nil {
		return logEntry{}, false, next, err
	}
	conv, err := conversations.Decode(row)
	idle := cmp.Or(b.cfg.Idle, conversations.DefaultIdle)
	switch {
	case err != nil:
		end = logEntry{}
	case conv.Rejected:
		end = logEntry{State: a2a.TaskStateRejected, Text: message.TextRejected}
	case conv.StateAt(now, idle) == conversations.Expired:
		end = logEntry{State: a2a.TaskStateFailed, Text: message.TextExpired}
	case conv.State == conversations.Open:
		end, isOpen, next = logEntry{}, true, conv.Expiry(idle)
	case now.Sub(conv.Last) <= closeTime:
		end = logEntry{}
	case conv.State == conversations.Completed:
		end = logEntry{State: a2a.TaskStateCompleted}
	}
	return end, isOpen, next, err
}

// syncDue calls sync for the conversation of a task that is due.
func (b *Bridge) syncDue(ctx context.Context, rec store.Record) error {
	t, err := decodeTask(rec)
	if err != nil {
		return err
	}
	return b.sync(ctx, t.convKey())
}

// syncAll calls sync for every conversation with an open task, after changes of items were missed.
func (b *Bridge) syncAll(ctx context.Context) error {
	tasks, err := b.tasksWith(ctx, termOpen)
	seen := make(map[store.ConvKey]bool)
	for _, t := range tasks {
		if key := t.convKey(); !seen[key] {
			seen[key] = true
			err = errors.Join(err, b.sync(ctx, key))
		}
	}
	return err
}

var (
	errNotFull = errors.New("the caller has room for more tasks")
	errAllOpen = errors.New("all tasks of the caller are open")
)

// evict removes the older half of a caller's ended tasks. It returns errNotFull if the caller has fewer than maxTasks,
// and errAllOpen if no task has ended; refusals of the next minute then cost nothing (see [fullCallers]).
func (b *Bridge) evict(ctx context.Context, address string) error {
	looking := new(time.Time)
	b.full.Store(address, looking)
	tasks, err := b.tasksWith(ctx, callerTerm(address))
	if err != nil {
		return err
	}
	if len(tasks) < maxTasks {
		return errNotFull
	}
	tasks = slices.DeleteFunc(tasks, func(t *taskRow) bool { return !t.last().State.Terminal() })
	if len(tasks) == 0 {
		b.full.CompareAndSwap(address, looking, new(time.Now())) // unless a task ended meanwhile
		return errAllOpen
	}
	var changes []store.Change
	for _, t := range tasks[len(tasks)/2:] {
		changes = append(changes, store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: nsTasks, Key: t.ID}}) // the task has ended, so nothing changes it
	}
	return b.records.Apply(ctx, changes, time.Now())
}

// fullCallers has, for each [bridge.Address] of a caller, when evict found only open tasks of it. An entry goes when one
// of the tasks ends here.
type fullCallers struct{ sync.Map }

// has reports whether a caller was found full less than a minute ago. Another process may have ended a task since.
func (f *fullCallers) has(address string) bool {
	found, ok := f.Load(address)
	return ok && time.Since(*found.(*time.Time)) < time.Minute
}
