package conversations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The largest number of attempts at a [Unit] while others change the same rows.
const (
	maxAttempts       = 8
	maxInsistAttempts = 1000 // for a busy conversation, where each conflict means that another unit was committed
)

// Unit is one attempt to change a conversation, together with everything that must change with it. The function passed
// to [Book.Do] records events and adds changes; Do commits them as one [store.Step], or not at all. A unit must not be
// used by more than one goroutine.
type Unit struct {
	Now time.Time // the time of everything in the unit

	Replay *store.Replay // the record of the message that the unit accepts; nil if it accepts none
	Answer *store.Replay // the new answer to an earlier message; may be nil

	book     *Book
	row      store.Conversation
	conv     Conversation
	recorded bool
	deleted  bool
	entries  []store.Entry
	changes  []store.Change

	onCommit, onAbort []func()
}

// Do changes the conversation of key in one unit: it loads the conversation, calls change, and commits. If a row
// changed meanwhile, Do tries again; after eight attempts it returns [store.ErrConflict]. So change must have no
// effects outside of the unit, except through [Unit.Then] and [Unit.Otherwise]. An error of change aborts the unit. For
// a unit without a conversation, pass the zero key.
func (b *Book) Do(ctx context.Context, key store.ConvKey, change func(*Unit) error) error {
	err := store.ErrConflict
	for n := 0; n < maxAttempts && IsConflict(err); n++ {
		err = b.Try(ctx, key, time.Now(), change)
	}
	return err
}

// Insist is [Book.Do] with many more attempts, for a change that nobody would repeat after [store.ErrConflict].
func (b *Book) Insist(ctx context.Context, key store.ConvKey, change func(*Unit) error) error {
	err := store.ErrConflict
	for n := 0; n < maxInsistAttempts && IsConflict(err); n++ {
		err = b.Try(ctx, key, time.Now(), change)
	}
	return err
}

// Try makes one attempt of [Book.Do], for code that is itself called again after a conflict.
func (b *Book) Try(ctx context.Context, key store.ConvKey, now time.Time, change func(*Unit) error) error {
	u, err := b.Load(ctx, key, now)
	if err != nil {
		return err
	}
	if err = change(u); err == nil {
		err = u.commit(ctx)
	}
	callbacks := u.onCommit
	if err != nil {
		callbacks = u.onAbort
	}
	for _, f := range callbacks {
		f()
	}
	return err
}

// IsConflict reports whether a unit failed because a row changed meanwhile, so that a new attempt may succeed. A
// refusal is final, even if its cause is a conflict.
func IsConflict(err error) bool {
	_, refused := errors.AsType[*wire.Error](err)
	return !refused && errors.Is(err, store.ErrConflict)
}

// IsNew reports whether the conversation had not begun when it was loaded.
func (u *Unit) IsNew() bool { return u.row.Rev == store.Absent }

// Conversation returns the state after all recorded events.
func (u *Unit) Conversation() Conversation { return u.conv }

// IsOpen reports whether the conversation has begun and not ended.
func (u *Unit) IsOpen() bool { return u.conv.StateAt(u.Now, u.book.IdleFor()) == Open }

// EndHold ends a hold: it records that the message that was to wait for our owner until this time no longer waits. If no
// message waits until this time, EndHold does nothing.
func (u *Unit) EndHold(until time.Time) error {
	if !slices.ContainsFunc(u.conv.Held, until.Equal) {
		return nil
	}
	return u.Record(Event{Kind: HoldEnded, At: u.Now, Until: until})
}

// CheckOpen returns the error that refuses a message of the peer if the conversation had ended when the message arrived,
// or nil. If the conversation has expired since then, because the message waited in a mailbox, its idle time starts again.
func (u *Unit) CheckOpen(arrived time.Time) error {
	switch {
	case u.conv.Rejected:
		return wire.ErrOwnerRejected
	case u.conv.State == "" || u.IsOpen():
		return nil
	case u.conv.StateAt(arrived, u.book.IdleFor()) == Open:
		u.conv = u.conv.touch(u.Now)
	}
	if !u.IsOpen() {
		return wire.ErrConversationClosed
	}
	return nil
}

// Record applies an event. It returns the refusals of [Conversation.Next].
func (u *Unit) Record(e Event) error {
	next, err := u.conv.Next(e, u.book.IdleFor())
	if err == nil {
		u.conv, u.recorded = next, true
	}
	return err
}

// SetLastSent sets [Conversation.LastSent].
func (u *Unit) SetLastSent(number int64) { u.conv.LastSent = number }

// Append adds a message to the transcript. The commit sets N and Chain. Append is separate from Record, because some
// messages are not events, such as the echo of a close.
func (u *Unit) Append(e store.Entry) {
	u.entries = append(u.entries, e)
	u.conv.Bytes += int64(len(e.Raw))
}

// Add adds changes of records to the unit.
func (u *Unit) Add(changes ...store.Change) { u.changes = append(u.changes, changes...) }

// Changes returns the changes that Add collected.
func (u *Unit) Changes() []store.Change { return u.changes }

// HasChange reports whether the unit already changes the record with this namespace and key.
func (u *Unit) HasChange(ns, key string) bool {
	return slices.ContainsFunc(u.changes, func(c store.Change) bool { return c.Record.NS == ns && c.Record.Key == key })
}

// Delete makes the unit remove the conversation with everything stored for it. The commit returns store.ErrNotFound if
// the conversation does not exist.
func (u *Unit) Delete() { u.deleted = true }

// Then makes f run after the unit is committed.
func (u *Unit) Then(f func()) { u.onCommit = append(u.onCommit, f) }

// Otherwise makes f run if this attempt is not committed.
func (u *Unit) Otherwise(f func()) { u.onAbort = append(u.onAbort, f) }

// IsFull reports whether the transcript has its maximum size. The caller then refuses further messages, except a close
// and the answer to a message accepted before.
func (u *Unit) IsFull() bool { return u.conv.Bytes >= cmp.Or(u.book.MaxBytes, DefaultMaxBytes) }

// commit applies the unit as one step. If another unit accepted the same message meanwhile, the error is a conflict,
// and the next attempt finds the record of the message.
func (u *Unit) commit(ctx context.Context) error {
	if u.deleted {
		if u.IsNew() {
			return fmt.Errorf("delete conversation: %w", store.ErrNotFound)
		}
		return u.book.Steps.Forget(ctx, u.row.Key, u.row.Rev, u.changes, u.Now)
	}
	if !u.recorded && len(u.entries) == 0 && len(u.changes) == 0 && u.Replay == nil && u.Answer == nil {
		return nil
	}
	step := store.Step{Replay: u.Replay, Answer: u.Answer, Records: u.changes, Now: u.Now}
	if u.conv.State != "" { // otherwise the conversation has not begun, or the owner deleted it
		u.fill(&step)
	}
	applied, err := u.book.Steps.Apply(ctx, step)
	if applied.Dup || u.Replay != nil && errors.Is(err, store.ErrMismatch) {
		return store.ErrConflict
	}
	return err
}

// fill adds the conversation and its new transcript entries to the step.
func (u *Unit) fill(step *store.Step) {
	row := u.row
	prev := row.Chain
	for i, e := range u.entries {
		prev = Link(prev, e)
		e.N, e.Chain = row.Entries+uint64(i)+1, prev
		step.Append = append(step.Append, e)
	}
	row.Body, row.Chain, row.Updated = wire.MustMarshal(u.conv), prev, step.Now
	row.Terms = []string{stateTerm(u.conv.State), peerTerm(u.conv.Key.Peer)}
	if p := u.conv.Principal; p != "" && p != u.conv.Key.Peer {
		row.Terms = append(row.Terms, peerTerm(p))
	}
	row.Open = u.conv.State == Open
	row.Expires = step.Now.Add(cmp.Or(u.book.Retention, DefaultRetention))
	if row.Open {
		// When silence ends the conversation, nobody writes the row again. So the retention begins at the expiry.
		row.Expires = u.conv.Expiry(u.book.IdleFor()).Add(cmp.Or(u.book.Retention, DefaultRetention))
	}
	row.Expires = Sooner(row.Expires, u.conv.Purge)
	step.Conv = &row
}
