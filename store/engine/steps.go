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
	u := &stepUnit{step: step}
	if err := s.Driver.Do(ctx, Call{Needs: u.needs, Check: u.check, Records: step.Records, Now: step.Now}); err != nil {
		return store.Applied{}, err
	}
	return u.applied, nil
}

// stepUnit is a step with what it writes.
type stepUnit struct {
	step     store.Step
	applied  store.Applied
	conv     *store.Conversation // the row that the step writes; Seq is 0 for a new conversation
	old      *store.Conversation // the row that conv replaces; nil for a new conversation
	expired  *store.Conversation // an expired conversation with the same key, which must be removed first
	replay   *ReplayRow          // the new record of an accepted message
	before   *StoredReplay       // a record of the same message that no longer counts, which replay replaces
	answered *StoredReplay       // the record that gets an answer
}

func (u *stepUnit) needs(n *Needs) {
	n.addLease(u.step.Held)
	if u.step.Conv != nil {
		n.Add(KindConv, ConvKey(u.step.Conv.Key))
	}
	for _, r := range []*store.Replay{u.step.Replay, u.step.Answer} {
		if r != nil {
			n.Add(KindReplay, ReplayHash(r.Sender, r.MessageID))
			n.Add(KindConv, ConvKey(r.Conv))
		}
	}
}

// check checks the step in the order of [store.Steps].
func (u *stepUnit) check(tx Tx) (write func(store.Rev) error, err error) {
	*u = stepUnit{step: u.step}
	if err := tx.CheckLease(u.step.Held); err != nil {
		return nil, err
	}
	if r := u.step.Replay; r != nil {
		if u.before, u.applied.Dup, err = matchReplay(tx, *r, u.step.Now); err != nil {
			return nil, err
		}
		if u.applied.Dup {
			rec, err := answerOf(tx, u.before.ReplayRow, u.step.Now)
			u.applied.Replay = &rec
			return nil, err
		}
	}
	if a := u.step.Answer; a != nil {
		rec, live, err := matchReplay(tx, *a, u.step.Now)
		if err != nil {
			return nil, err
		}
		if live {
			u.answered = rec
		}
	}
	if err := u.checkConv(tx); err != nil {
		return nil, err
	}
	return func(rev store.Rev) error { return u.write(tx, rev) }, u.checkReplay(tx)
}

// checkConv checks the revision of the step's conversation.
func (u *stepUnit) checkConv(tx Tx) error {
	if u.step.Conv == nil {
		return nil
	}
	old, err := findConv(tx, u.step.Conv.Key)
	if err != nil {
		return err
	}
	current := store.Absent
	if isConvLive(old, u.step.Now) {
		u.old, current = old, old.Rev
	} else {
		u.expired = old
	}
	if !revFits(u.step.Conv.Rev, u.old != nil, current) {
		return fmt.Errorf("conversation: %w", store.ErrConflict)
	}
	conv := *u.step.Conv
	conv.Terms, conv.Seq, conv.Entries = SortedSet(conv.Terms), 0, 0
	if u.old != nil {
		conv.Seq, conv.Entries = old.Seq, old.Entries
	}
	u.conv = &conv
	return nil
}

// checkReplay finds the conversation of a new replay record, unless the step itself writes that conversation.
func (u *stepUnit) checkReplay(tx Tx) error {
	if u.step.Replay == nil {
		return nil
	}
	u.replay = &ReplayRow{Replay: *u.step.Replay}
	if key := u.replay.Conv; key != (store.ConvKey{}) && !u.isOwn(key) {
		conv, err := findConv(tx, key)
		if err != nil {
			return err
		}
		if isConvLive(conv, u.step.Now) {
			u.replay.ConvSeq = conv.Seq
		}
	}
	return nil
}

// isOwn reports whether the step writes the conversation with this key.
func (u *stepUnit) isOwn(key store.ConvKey) bool { return u.conv != nil && u.conv.Key == key }

func (u *stepUnit) write(tx Tx, rev store.Rev) error {
	if u.expired != nil {
		if _, err := dropConv(tx, *u.expired, math.MaxInt); err != nil {
			return err
		}
	}
	// named: the first new entry names the replay record of its message.
	named := u.replay != nil && u.isOwn(u.replay.Conv) && len(u.step.Append) > 0
	if u.conv != nil {
		u.applied.Rev, u.conv.Rev = rev, rev
		if u.conv.Seq == 0 {
			u.conv.Seq = tx.NextConv(rev)
		}
		for i, e := range u.step.Append {
			u.conv.Entries++
			e.N = u.conv.Entries
			entry := EntryRow{Entry: e}
			if named && i == 0 {
				entry.Replay = ReplayHash(u.replay.Sender, u.replay.MessageID)
			}
			tx.Put(Row{Kind: KindEntry, Num: u.conv.Seq, N: e.N, Key: EntryKey(u.conv.Seq, e.N), Value: EncodeEntry(entry)}, Row{})
		}
		row, old := convRow(*u.conv, EncodeConv(*u.conv)), Row{}
		if u.old != nil {
			old = Row{Kind: KindConv, Key: row.Key, Due: Deadline(u.old.Expires), Terms: u.old.Terms}
		}
		noteConv(tx, u.conv.Key)
		tx.Put(row, old)
	}
	if r := u.replay; r != nil {
		if u.isOwn(r.Conv) {
			r.ConvSeq = u.conv.Seq
		}
		u.setAnswer(r, r.Status, r.Answer)
		tx.PutReplay(*r, u.before, named)
	}
	if a := u.answered; a != nil {
		u.setAnswer(&a.ReplayRow, u.step.Answer.Status, u.step.Answer.Answer)
		tx.PutReplay(a.ReplayRow, a, true)
	}
	return nil
}

// setAnswer sets the answer of a replay record. If a new entry of the transcript is the answer, the record only refers
// to it.
func (u *stepUnit) setAnswer(p *ReplayRow, status int, answer []byte) {
	p.Status, p.Answer, p.Entry = status, answer, 0
	if u.conv == nil || u.conv.Seq != p.ConvSeq {
		return
	}
	for i, e := range u.step.Append {
		if e.Out && bytes.Equal(e.Raw, answer) {
			p.Answer, p.Entry = nil, u.conv.Entries-uint64(len(u.step.Append)-i-1)
		}
	}
}

// dropConv removes a conversation, or limit entries of a long transcript. It returns how many entries it removed. The
// replay records stay.
func dropConv(tx Tx, conv store.Conversation, limit int) (removed int, err error) {
	removed, err = tx.DropEntries(conv.Seq, limit)
	if err == nil && removed < limit {
		tx.Drop(convRow(conv, nil))
	}
	return removed, err
}

func noteConv(tx Tx, key store.ConvKey) { tx.Note(store.WatchConversations, key.Peer+"/"+key.ID) }

// Forget implements [store.Steps].
func (s Steps) Forget(ctx context.Context, key store.ConvKey, ifRev store.Rev, changes []store.Change, now time.Time) error {
	return s.Driver.Do(ctx, Call{
		Needs: func(n *Needs) { n.Add(KindConv, ConvKey(key)) },
		Check: func(tx Tx) (func(store.Rev) error, error) {
			conv, err := findConv(tx, key)
			switch {
			case err != nil:
				return nil, err
			case !isConvLive(conv, now):
				return nil, store.ErrNotFound
			case !revFits(ifRev, true, conv.Rev):
				return nil, fmt.Errorf("conversation: %w", store.ErrConflict)
			}
			replays, err := tx.ReplaysOf(*conv)
			return func(store.Rev) error {
				noteConv(tx, key)
				for _, rec := range replays { // they stay, so that no message of the conversation is accepted again
					rec.forget()
					tx.PutReplay(rec.ReplayRow, &rec, true)
				}
				_, err := dropConv(tx, *conv, math.MaxInt)
				return err
			}, err
		},
		Records: changes, Now: now,
	})
}

// Conversation implements [store.Steps].
func (s Steps) Conversation(ctx context.Context, key store.ConvKey, now time.Time) (store.Conversation, error) {
	return view(ctx, s.Driver, func(r Reader) (*store.Conversation, error) { return findConv(r, key) },
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
	rec, err = findReplay(r, sender, messageID)
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
	conv, err := findConv(r, rec.Conv)
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
	entry, err := findRow(r, KindEntry, EntryKey(rec.ConvSeq, rec.Entry), func(row Row) (EntryRow, error) { return DecodeEntry(rec.Entry, row.Value) })
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
