package conversations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// How often a unit is decided again because another unit changed the same rows first.
const (
	attempts        = 8
	patientAttempts = 1000 // each conflict is another unit that came through, so in a busy conversation it takes many
)

// Contributor reacts to an event inside the unit that records it. before is the conversation without the event. It may
// add changes, and record and append one message of ours. It runs again if the unit is decided again, so it reads and
// does no other input or output.
type Contributor func(ctx context.Context, u *Unit, before Conversation, e Event) error

// Unit is one attempt to change a conversation, together with everything that must change with it. The function that is
// passed to [Book.Do] records what happened and adds what belongs to it, and Do commits that as one [store.Step] or not
// at all. A unit that changes nothing commits nothing. It belongs to one goroutine.
type Unit struct {
	Now time.Time // the time of everything in the unit

	Replay *store.Replay // remembers the message that the unit accepts; nil if it accepts none
	Answer *store.Replay // replaces what an earlier message was answered with; nil if nothing does

	book     *Book
	row      store.Conversation
	conv     Conversation
	recorded bool // an event
	deleted  bool
	entries  []store.Entry
	changes  []store.Change

	then, otherwise []func()
}

// Do changes the conversation of key in one unit: it loads the conversation, calls change, and commits. If a row moved
// meanwhile, it does all of that again, up to eight times, and then returns [store.ErrConflict]. So change must leave no
// trace outside the unit except by [Unit.Then]. An error of change ends the unit without a change. A zero key is that of
// a unit without a conversation.
func (b *Book) Do(ctx context.Context, key store.ConvKey, change func(*Unit) error) error {
	return b.repeat(ctx, key, attempts, change)
}

// Insist is [Book.Do] with very many attempts, for a unit that no sender would repeat.
func (b *Book) Insist(ctx context.Context, key store.ConvKey, change func(*Unit) error) error {
	return b.repeat(ctx, key, patientAttempts, change)
}

func (b *Book) repeat(ctx context.Context, key store.ConvKey, attempts int, change func(*Unit) error) (err error) {
	for range attempts {
		if err = b.Try(ctx, key, time.Now(), change); !IsConflict(err) {
			break
		}
	}
	return err
}

// Try is one attempt of [Book.Do], at the given time. It is for a caller that is itself called again after a conflict.
func (b *Book) Try(ctx context.Context, key store.ConvKey, now time.Time, change func(*Unit) error) error {
	u, err := b.Load(ctx, key, now)
	if err != nil {
		return err
	}
	if err = change(u); err == nil {
		err = u.commit(ctx)
	}
	after := u.then
	if err != nil {
		after = u.otherwise
	}
	for _, f := range after {
		f()
	}
	return err
}

// IsConflict reports whether a unit failed because a row moved meanwhile, so that it may be decided again. A refusal is
// final, also if a conflict is its cause.
func IsConflict(err error) bool {
	_, refused := errors.AsType[*wire.Error](err)
	return !refused && errors.Is(err, store.ErrConflict)
}

// New reports whether the conversation had not begun when it was loaded.
func (u *Unit) New() bool { return u.row.Rev == store.Absent }

// Conversation returns the state after all that was recorded.
func (u *Unit) Conversation() Conversation { return u.conv }

// Record applies an event, and then has the contributors of the book react to it. See [Conversation.Next] for what it
// refuses.
func (u *Unit) Record(ctx context.Context, e Event) error {
	before := u.conv
	next, err := before.Next(e, u.book.IdleFor())
	if err != nil {
		return err
	}
	u.conv, u.recorded = next, true
	for _, contribute := range u.book.Contributors {
		if err := contribute(ctx, u, before, e); err != nil {
			return err
		}
	}
	return nil
}

// Append adds a message to the transcript. N and Chain are given here. It is separate from Record because a message may
// be kept without being an event, such as the echo of a close.
func (u *Unit) Append(e store.Entry) {
	u.entries = append(u.entries, e)
	u.conv.Bytes += int64(len(e.Raw))
}

// Add adds changes of records to the unit.
func (u *Unit) Add(changes ...store.Change) { u.changes = append(u.changes, changes...) }

// Changes reports whether the unit changes the record of a namespace with this key already.
func (u *Unit) Changes(ns, key string) bool {
	for _, c := range u.changes {
		if c.Record.NS == ns && c.Record.Key == key {
			return true
		}
	}
	return false
}

// Delete makes the unit remove the conversation with everything that the store kept for it, instead of changing it. It is
// store.ErrNotFound if there is none.
func (u *Unit) Delete() { u.deleted = true }

// Then calls f once the unit is committed.
func (u *Unit) Then(f func()) { u.then = append(u.then, f) }

// Otherwise calls f if this attempt is not committed.
func (u *Unit) Otherwise(f func()) { u.otherwise = append(u.otherwise, f) }

// Full reports whether the transcript holds as much as one may. The caller refuses what comes then, except a close and
// the answer to what was accepted before.
func (u *Unit) Full() bool { return u.conv.Bytes >= cmp.Or(u.book.MaxBytes, DefaultMaxBytes) }

// commit applies the unit as one step. A message that was accepted in another way meanwhile is a conflict: the next
// attempt finds its record.
func (u *Unit) commit(ctx context.Context) error {
	if u.deleted {
		if u.New() {
			return fmt.Errorf("delete conversation: %w", store.ErrNotFound)
		}
		return u.book.Steps.Forget(ctx, u.row.Key, u.row.Rev, u.changes, u.Now)
	}
	if !u.recorded && len(u.entries) == 0 && len(u.changes) == 0 && u.Replay == nil && u.Answer == nil {
		return nil
	}
	step := store.Step{Replay: u.Replay, Answer: u.Answer, Records: u.changes, Now: u.Now}
	if u.conv.State != "" { // else it has not begun, or the owner deleted it
		u.into(&step)
	}
	applied, err := u.book.Steps.Apply(ctx, step)
	if applied.Dup || u.Replay != nil && errors.Is(err, store.ErrMismatch) {
		return store.ErrConflict
	}
	return err
}

// into puts the conversation and its new entries into a step.
func (u *Unit) into(step *store.Step) {
	row := u.row
	prev := row.Chain
	for i, e := range u.entries {
		prev = Link(prev, e)
		e.N, e.Chain = row.Entries+uint64(i)+1, prev
		step.Append = append(step.Append, e)
	}
	body, err := json.Marshal(u.conv)
	if err != nil {
		panic(fmt.Sprintf("conversations: encode: %v", err)) // only fields we filled
	}
	row.Body, row.Chain, row.Updated = body, prev, step.Now
	row.Terms = []string{stateTerm(u.conv.State), peerTerm(u.conv.Key.Peer)}
	row.Open = u.conv.State == Open
	row.Expires = step.Now.Add(cmp.Or(u.book.Retention, DefaultRetention))
	if row.Open {
		// It may expire by silence, and then nobody writes the row again.
		row.Expires = u.conv.ends(u.book.IdleFor()).Add(cmp.Or(u.book.Retention, DefaultRetention))
	}
	row.Expires = Sooner(row.Expires, u.conv.Purge)
	step.Conv = &row
}
