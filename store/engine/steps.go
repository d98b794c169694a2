package engine

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Steps has the methods of [store.Steps] that only need single rows.
type Steps struct{ Driver Driver }

// Apply implements [store.Steps].
func (s Steps) Apply(ctx context.Context, step store.Step) (store.Applied, error) {
	if err := checkStep(step); err != nil {
		return store.Applied{}, err
	}
	call := &stepCall{step: step}
	if err := s.Driver.Do(ctx, call); err != nil {
		return store.Applied{}, err
	}
	return call.applied, nil
}

// stepCall is a step with what the unit must write.
type stepCall struct {
	step     store.Step
	applied  store.Applied
	conv     *store.Conversation // the row that the step writes; Seq is 0 for a new conversation
	old      *store.Conversation // the row that conv replaces; nil for a new conversation
	expired  *store.Conversation // an expired conversation with the same key, which must be removed first
	replay   *ReplayRow          // the new record of an accepted message
	before   *StoredReplay       // a record of the same message that no longer counts, which replay replaces
	answered *StoredReplay       // the record that gets an answer
	records  []recordWrite
}

func (c *stepCall) Needs() (n Needs) {
	n.addLease(c.step.Held)
	if c.step.Conv != nil {
		n.Add(KindConv, ConvKey(c.step.Conv.Key))
	}
	for _, r := range []*store.Replay{c.step.Replay, c.step.Answer} {
		if r != nil {
			n.Add(KindReplay, ReplayHash(r.Sender, r.MessageID))
			n.Add(KindConv, ConvKey(r.Conv))
		}
	}
	n.AddRecords(c.step.Records)
	return n
}

// Plan checks the step in the order of [store.Steps].
func (c *stepCall) Plan(tx Tx) (write func() error, err error) {
	*c = stepCall{step: c.step}
	if err := tx.CheckLease(c.step.Held); err != nil {
		return nil, err
	}
	if r := c.step.Replay; r != nil {
		if c.before, c.applied.Dup, err = matchReplay(tx, *r, c.step.Now); err != nil {
			return nil, err
		}
		if c.applied.Dup {
			rec, err := answerOf(tx, c.before.ReplayRow, c.step.Now)
			c.applied.Replay = &rec
			return nil, err
		}
	}
	if a := c.step.Answer; a != nil {
		rec, live, err := matchReplay(tx, *a, c.step.Now)
		if err != nil {
			return nil, err
		}
		if live {
			c.answered = rec
		}
	}
	if err := c.planConv(tx); err != nil {
		return nil, err
	}
	if err := c.planReplay(tx); err != nil {
		return nil, err
	}
	c.records, err = planRecords(tx, c.step.Records, c.step.Now)
	return func() error { return c.write(tx) }, err
}

// planConv checks the revision of the step's conversation.
func (c *stepCall) planConv(tx Tx) error {
	if c.step.Conv == nil {
		return nil
	}
	old, err := tx.Conv(c.step.Conv.Key)
	if err != nil {
		return err
	}
	current := store.Absent
	if isConvLive(old, c.step.Now) {
		c.old, current = old, old.Rev
	} else {
		c.expired = old
	}
	if !revFits(c.step.Conv.Rev, c.old != nil, current) {
		return fmt.Errorf("conversation: %w", store.ErrConflict)
	}
	conv := *c.step.Conv
	conv.Terms, conv.Seq, conv.Entries = SortedSet(conv.Terms), 0, 0
	if c.old != nil {
		conv.Seq, conv.Entries = old.Seq, old.Entries
	}
	c.conv = &conv
	return nil
}

// planReplay finds the conversation of a new replay record, unless the step itself writes that conversation.
func (c *stepCall) planReplay(tx Tx) error {
	if c.step.Replay == nil {
		return nil
	}
	c.replay = &ReplayRow{Replay: *c.step.Replay}
	if key := c.replay.Conv; key != (store.ConvKey{}) && !c.isOwn(key) {
		conv, err := tx.Conv(key)
		if err != nil {
			return err
		}
		if isConvLive(conv, c.step.Now) {
			c.replay.ConvSeq = conv.Seq
		}
	}
	return nil
}

// isOwn reports whether the step writes the conversation with this key.
func (c *stepCall) isOwn(key store.ConvKey) bool { return c.conv != nil && c.conv.Key == key }

func (c *stepCall) write(tx Tx) error {
	rev := tx.NextRev()
	if c.expired != nil {
		if _, err := tx.DropConv(*c.expired, math.MaxInt); err != nil {
			return err
		}
	}
	// named: the first new entry names the replay record of its message.
	named := c.replay != nil && c.isOwn(c.replay.Conv) && len(c.step.Append) > 0
	if c.conv != nil {
		c.applied.Rev, c.conv.Rev = rev, rev
		if c.conv.Seq == 0 {
			c.conv.Seq = tx.NextConv(rev)
		}
		added := make([]EntryRow, len(c.step.Append))
		for i, e := range c.step.Append {
			c.conv.Entries++
			e.N = c.conv.Entries
			added[i].Entry = e
		}
		if named {
			added[0].Replay = ReplayHash(c.replay.Sender, c.replay.MessageID)
		}
		noteConv(tx, c.conv.Key)
		tx.PutConv(*c.conv, c.old, added)
	}
	if r := c.replay; r != nil {
		if c.isOwn(r.Conv) {
			r.ConvSeq = c.conv.Seq
		}
		c.setAnswer(r, r.Status, r.Answer)
		tx.PutReplay(*r, c.before, named)
	}
	if a := c.answered; a != nil {
		c.setAnswer(&a.ReplayRow, c.step.Answer.Status, c.step.Answer.Answer)
		tx.PutReplay(a.ReplayRow, a, true)
	}
	return writeRecords(tx, c.records, rev)
}

// setAnswer sets the answer of a replay record. If a new entry of the transcript is the answer, the record only refers
// to it.
func (c *stepCall) setAnswer(p *ReplayRow, status int, answer []byte) {
	p.Status, p.Answer, p.Entry = status, answer, 0
	if c.conv == nil || c.conv.Seq != p.ConvSeq {
		return
	}
	for i, e := range c.step.Append {
		if e.Out && bytes.Equal(e.Raw, answer) {
			p.Answer, p.Entry = nil, c.conv.Entries-uint64(len(c.step.Append)-i-1)
		}
	}
}

func noteConv(tx Tx, key store.ConvKey) { tx.Note(store.WatchConversations, key.Peer+"/"+key.ID) }

// Forget implements [store.Steps].
func (s Steps) Forget(ctx context.Context, key store.ConvKey, ifRev store.Rev, changes []store.Change, now time.Time) error {
	return s.Driver.Do(ctx, forgetCall{key, ifRev, changes, now})
}

type forgetCall struct {
	key     store.ConvKey
	ifRev   store.Rev
	changes []store.Change
	now     time.Time
}

func (c forgetCall) Needs() (n Needs) {
	n.Add(KindConv, ConvKey(c.key))
	n.AddRecords(c.changes)
	return n
}

func (c forgetCall) Plan(tx Tx) (write func() error, err error) {
	conv, err := tx.Conv(c.key)
	switch {
	case err != nil:
		return nil, err
	case !isConvLive(conv, c.now):
		return nil, store.ErrNotFound
	case !revFits(c.ifRev, true, conv.Rev):
		return nil, fmt.Errorf("conversation: %w", store.ErrConflict)
	}
	records, err := planRecords(tx, c.changes, c.now)
	if err != nil {
		return nil, err
	}
	replays, err := tx.ReplaysOf(*conv)
	return func() error {
		noteConv(tx, c.key)
		for _, rec := range replays { // they stay, so that no message of the conversation is accepted again
			rec.forget()
			tx.PutReplay(rec.ReplayRow, &rec, true)
		}
		if err := writeRecords(tx, records, tx.NextRev()); err != nil {
			return err
		}
		_, err := tx.DropConv(*conv, math.MaxInt)
		return err
	}, err
}

// Conversation implements [store.Steps].
func (s Steps) Conversation(ctx context.Context, key store.ConvKey, now time.Time) (store.Conversation, error) {
	return find(ctx, s.Driver, func(r Reader) (*store.Conversation, error) { return r.Conv(key) },
		func(conv *store.Conversation) bool { return IsLive(conv.Expires, now) })
}

// FindReplay implements [store.Steps].
func (s Steps) FindReplay(ctx context.Context, sender, messageID string, now time.Time) (rec store.Replay, err error) {
	err = s.Driver.View(ctx, func(r Reader) error {
		found, live, err := replayOf(r, sender, messageID, now)
		if err != nil {
			return err
		}
		if !live {
			return store.ErrNotFound
		}
		rec, err = answerOf(r, found.ReplayRow, now)
		return err
	})
	return rec, err
}

// matchReplay works like replayOf. If the record counts and has another digest than want, the error is ErrMismatch.
func matchReplay(r Reader, want store.Replay, now time.Time) (rec *StoredReplay, live bool, err error) {
	rec, live, err = replayOf(r, want.Sender, want.MessageID, now)
	if live && rec.Digest != want.Digest {
		err = store.ErrMismatch
	}
	return rec, live, err
}

// replayOf returns the record of a message, or nil, and whether it counts at now.
func replayOf(r Reader, sender, messageID string, now time.Time) (rec *StoredReplay, live bool, err error) {
	rec, err = r.Replay(sender, messageID)
	if rec == nil || err != nil {
		return nil, false, err
	}
	live, err = IsReplayLive(r, rec.ReplayRow, now)
	return rec, live, err
}

// IsReplayLive reports whether a replay record counts at now: it has not expired, or its conversation is open.
func IsReplayLive(r Reader, rec ReplayRow, now time.Time) (bool, error) {
	if IsLive(rec.Expires, now) {
		return true, nil
	}
	conv, err := liveConvOf(r, rec, now)
	return conv != nil && conv.Open, err
}

// liveConvOf returns the conversation of a replay record, or nil if it is gone.
func liveConvOf(r Reader, rec ReplayRow, now time.Time) (*store.Conversation, error) {
	if rec.ConvSeq == 0 {
		return nil, nil
	}
	conv, err := r.Conv(rec.Conv)
	if err != nil || !isConvLive(conv, now) || conv.Seq != rec.ConvSeq {
		return nil, err
	}
	return conv, nil
}

// answerOf returns a replay record with its answer, as [store.Steps] returns it.
func answerOf(r Reader, rec ReplayRow, now time.Time) (store.Replay, error) {
	if rec.ConvSeq == 0 {
		return rec.Replay, nil
	}
	conv, err := liveConvOf(r, rec, now)
	if err != nil {
		return store.Replay{}, err
	}
	if conv == nil {
		rec.forget()
	}
	if rec.Entry == 0 {
		return rec.Replay, nil
	}
	entry, err := r.Entry(rec.ConvSeq, rec.Entry)
	if err != nil {
		return store.Replay{}, err
	}
	if entry == nil { // another process has removed the conversation since
		rec.forget()
		return rec.Replay, nil
	}
	rec.Answer = entry.Raw
	return rec.Replay, nil
}
