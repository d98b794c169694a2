package engine

import (
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// RecordTx is the transaction in which a unit changes records. A unit is what one caller changes, all or nothing. If
// several units share the transaction, a unit sees the writes of the earlier ones.
type RecordTx interface {
	// CheckLease returns ErrLeaseLost if the lease is lost. A nil lease passes.
	CheckLease(held *store.Lease) error
	// Record returns a record, even if it has expired. ok is false if it has no row.
	Record(ns, key string) (rec store.Record, ok bool, err error)
	// CountRecords returns the number of records in set that are live at now.
	CountRecords(set RecordSet, now int64) (int, error)
}

// RecordWrite is a change that has passed the checks, with the row that it replaces.
type RecordWrite struct {
	Change store.Change
	Old    store.Record
	Exists bool
}

// PlanRecords checks the changes of a unit and returns what the unit must write under one revision.
func PlanRecords(tx RecordTx, changes []store.Change, now time.Time) ([]RecordWrite, error) {
	writes := make([]RecordWrite, 0, len(changes))
	growth := make(map[RecordSet]int) // how many records the earlier changes of the unit add to each set
	seen := make(map[[2]string]bool, len(changes))
	for _, change := range changes {
		if err := tx.CheckLease(change.Held); err != nil {
			return nil, err
		}
		if change.Held != nil && !change.HasRecord() { // the change only checks the lease
			continue
		}
		if err := checkChange(change); err != nil {
			return nil, err
		}
		rec := change.Record
		name := [2]string{rec.NS, rec.Key}
		if seen[name] {
			return nil, errors.New("a unit must not change the same record twice")
		}
		seen[name] = true
		old, exists, err := tx.Record(rec.NS, rec.Key)
		if err != nil {
			return nil, err
		}
		live := exists && IsLive(old.Expires, now)
		if !RevFits(change.IfRev, live, old.Rev) {
			return nil, fmt.Errorf("record of %s: %w", rec.NS, store.ErrConflict)
		}
		if change.Max > 0 && !change.Delete && !live { // the change adds a record
			set := LimitedSet(change)
			n, err := tx.CountRecords(set, Nanos(now))
			if err != nil {
				return nil, err
			}
			if n+growth[set] >= change.Max {
				return nil, fmt.Errorf("%w: %d records of %s", store.ErrQuota, change.Max, rec.NS)
			}
		}
		if live {
			for set := range SetsOf(old) {
				growth[set]--
			}
		}
		if !change.Delete {
			for set := range SetsOf(rec) {
				growth[set]++
			}
		}
		writes = append(writes, RecordWrite{change, old, exists})
	}
	return writes, nil
}

// RecordSet is the set of the records of a namespace that carry Term, or of all its records if Term is empty.
type RecordSet struct{ NS, Term string }

// LimitedSet returns the set whose size the Max of a change limits.
func LimitedSet(c store.Change) RecordSet {
	if len(c.Record.Terms) > 0 {
		return RecordSet{c.Record.NS, c.Record.Terms[0]}
	}
	return RecordSet{NS: c.Record.NS}
}

// Prefix returns the key prefix of the rows that list the records of the set: rows of the Term or, without a Term, the
// records themselves.
func (s RecordSet) Prefix() []byte {
	if s.Term != "" {
		return TermKey(s.NS, s.Term, "")
	}
	return RecordKey(s.NS, "")
}

// SetsOf yields the sets that contain a record.
func SetsOf(rec store.Record) iter.Seq[RecordSet] {
	return func(yield func(RecordSet) bool) {
		if !yield(RecordSet{NS: rec.NS}) {
			return
		}
		for i, term := range rec.Terms {
			repeated := false
			for _, before := range rec.Terms[:i] {
				repeated = repeated || before == term
			}
			if !repeated && !yield(RecordSet{rec.NS, term}) {
				return
			}
		}
	}
}

// StepTx is the transaction in which a unit changes a conversation. Like RecordTx, it shows the writes of earlier units.
type StepTx interface {
	RecordTx
	// Conv returns a conversation, live or not, or nil.
	Conv(key store.ConvKey) (*store.Conversation, error)
	// Replay returns the record of an accepted message, and whether it counts at now. rec is zero if no record exists.
	Replay(sender, messageID string, now time.Time) (rec StoredReplay, live bool, err error)
	// WithAnswer returns a record with its answer, as [store.Steps] returns it.
	WithAnswer(rec ReplayRow, now time.Time) (store.Replay, error)
}

// StoredReplay is the row of a replay record. RowKey is its key, or nil if the engine does not need the key.
type StoredReplay struct {
	ReplayRow
	RowKey []byte
}

// StepPlan is a step that has passed the checks, with what the unit must write.
type StepPlan struct {
	step     store.Step
	Conv     *store.Conversation // the row; Seq is 0 for a new conversation, and the unit sets Rev
	Old      store.Conversation  // the row that Conv replaces; zero for a new conversation
	Expired  *store.Conversation // an expired conversation with the same key, which must be removed first
	Replay   *ReplayRow          // the new record of an accepted message; see Complete
	Before   StoredReplay        // a record of the same message that no longer counts, which Replay replaces
	Answered *StoredReplay       // the record that gets an answer; see Complete
	Records  []RecordWrite
}

// PlanStep checks a step in the order of [store.Steps]. If dup is not nil, the message was accepted before, and the
// unit writes nothing.
func PlanStep(tx StepTx, step store.Step) (p StepPlan, dup *store.Replay, err error) {
	p.step = step
	if err := tx.CheckLease(step.Held); err != nil {
		return p, nil, err
	}
	live := false
	if r := step.Replay; r != nil {
		p.Before, live, err = tx.Replay(r.Sender, r.MessageID, step.Now)
		switch {
		case err != nil:
			return p, nil, err
		case live && p.Before.Digest != r.Digest:
			return p, nil, store.ErrMismatch
		case live:
			rec, err := tx.WithAnswer(p.Before.ReplayRow, step.Now)
			return p, &rec, err
		}
	}
	if a := step.Answer; a != nil {
		rec, live, err := tx.Replay(a.Sender, a.MessageID, step.Now)
		switch {
		case err != nil:
			return p, nil, err
		case live && rec.Digest != a.Digest:
			return p, nil, store.ErrMismatch
		case live:
			p.Answered = &rec
		}
	}
	if err := p.planConv(tx); err != nil {
		return p, nil, err
	}
	if err := p.planReplay(tx); err != nil {
		return p, nil, err
	}
	p.Records, err = PlanRecords(tx, step.Records, step.Now)
	return p, nil, err
}

// planConv checks the revision of the step's conversation.
func (p *StepPlan) planConv(tx StepTx) error {
	if p.step.Conv == nil {
		return nil
	}
	old, err := tx.Conv(p.step.Conv.Key)
	if err != nil {
		return err
	}
	switch {
	case old == nil:
	case IsLive(old.Expires, p.step.Now):
		p.Old = *old
	default:
		p.Expired = old
	}
	if !RevFits(p.step.Conv.Rev, p.Old.Seq != 0, p.Old.Rev) {
		return fmt.Errorf("conversation: %w", store.ErrConflict)
	}
	conv := *p.step.Conv
	conv.Terms, conv.Seq, conv.Entries = SortedSet(conv.Terms), p.Old.Seq, p.Old.Entries
	p.Conv = &conv
	return nil
}

// planReplay finds the conversation of a new replay record, unless the step itself writes that conversation.
func (p *StepPlan) planReplay(tx StepTx) error {
	if p.step.Replay == nil {
		return nil
	}
	p.Replay = &ReplayRow{Replay: *p.step.Replay}
	if key := p.Replay.Conv; key != (store.ConvKey{}) && (p.Conv == nil || p.Conv.Key != key) {
		conv, err := tx.Conv(key)
		if err != nil {
			return err
		}
		if conv != nil && IsLive(conv.Expires, p.step.Now) {
			p.Replay.ConvSeq = conv.Seq
		}
	}
	return nil
}

// Complete sets the answers of Replay and Answered. Call it after Conv and its entries are written.
func (p *StepPlan) Complete() {
	if r := p.Replay; r != nil {
		if p.Conv != nil && p.Conv.Key == r.Conv {
			r.ConvSeq = p.Conv.Seq
		}
		r.SetAnswer(r.Status, r.Answer, p.step, p.Conv)
	}
	if p.Answered != nil {
		p.Answered.SetAnswer(p.step.Answer.Status, p.step.Answer.Answer, p.step, p.Conv)
	}
}
