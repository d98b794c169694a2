package notify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

const (
	nsStatus  = "notify"
	keyStatus = "state"
)

// pauses are the pauses after the first, the second, … failure in a row. The last one repeats.
var pauses = [...]time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour}

// Status is the state of the delivery of notices to the owner. It survives a restart.
type Status struct {
	Target   string    `json:"target,omitempty"` // empty: no target is configured
	Waiting  int       `json:"waiting"`          // notices that the target has not received yet, at most maxCounted
	Quiet    bool      `json:"quiet,omitempty"`
	Last     time.Time `json:"last,omitzero"` // when the target last accepted a batch
	Failures int       `json:"failures,omitempty"`
	Error    string    `json:"error,omitempty"`
	Since    time.Time `json:"failing_since,omitzero"`
	Next     time.Time `json:"next,omitzero"` // the next attempt after a failure
}

// Status returns the state of the delivery, or the zero Status if no target is configured.
func (b *Box) Status(ctx context.Context, now time.Time) (Status, error) {
	if b.cfg.Target == nil {
		return Status{}, nil
	}
	s, err := b.loadStatus(ctx, now)
	if err != nil {
		return Status{}, err
	}
	s.Waiting, err = b.cfg.Records.Count(ctx, Namespace, termTodo, maxCounted, now) // also those that quiet hours delay
	s.Target, s.Quiet = b.cfg.Target.Name(), b.cfg.Quiet.At(now)
	return s, err
}

func (b *Box) loadStatus(ctx context.Context, now time.Time) (s Status, err error) {
	if _, _, err := store.ReadRecord(ctx, b.cfg.Records, nsStatus, keyStatus, &s, now); err != nil {
		return Status{}, fmt.Errorf("read state of notices: %w", err)
	}
	return s, nil
}

func (s Status) change() store.Change {
	s.Target, s.Waiting, s.Quiet = "", 0, false // [Box.Status] sets these
	return store.Change{Record: store.Record{NS: nsStatus, Key: keyStatus, Body: wire.MustMarshal(s)}, IfRev: store.Any}
}

// listPending lists the notices that the target has not received yet, oldest first, at most maxCounted. If onlyUrgent
// is true, it lists only those that quiet hours do not delay.
func (b *Box) listPending(ctx context.Context, now time.Time, onlyUrgent bool) (pending []pendingNotice, err error) {
	for r, err := range store.AllRecords(ctx, b.cfg.Records, Namespace, termTodo, now) {
		if err != nil {
			return nil, fmt.Errorf("list notices: %w", err)
		}
		n, err := decode(r.Body)
		if err != nil {
			return nil, err
		}
		if !onlyUrgent || slices.Contains(b.cfg.Urgent, n.Kind) {
			pending = append(pending, pendingNotice{n, r})
		}
		if len(pending) == maxCounted {
			break
		}
	}
	return pending, nil
}

// Queue returns the work of sending the waiting notices, one batch at a time. A batch lists the first notices and counts
// the others.
func (b *Box) Queue() work.Queue {
	return work.Queue{NS: Namespace, Term: termTodo, Max: 1, MaxPause: 2 * b.cfg.Batch, Do: func(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
		now := time.Now()
		next, err := b.sendDue(ctx, now)
		if err != nil || next.IsZero() {
			return work.Later{}, err
		}
		return work.Later{Gate: "target", Pause: min(max(next.Sub(now), time.Second), time.Minute)}, nil // the clock may be set
	}}
}

// sendDue sends the notices that are due. If they must wait, it returns the time of the next attempt.
func (b *Box) sendDue(ctx context.Context, now time.Time) (next time.Time, err error) {
	if b.cfg.Target == nil { // it was removed from the configuration
		return now.Add(b.cfg.Keep), nil
	}
	quiet := b.cfg.Quiet.At(now)
	due, err := b.listPending(ctx, now, quiet) // in quiet hours, only urgent notices are due
	switch {
	case err != nil || len(due) == 0 && !quiet:
		return time.Time{}, err
	case len(due) == 0:
		return b.cfg.Quiet.End(now), nil
	}
	s, err := b.loadStatus(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	if now.Before(s.Next) {
		return s.Next, nil
	}
	since := due[0].At
	if due[0].Count > 0 {
		since = s.Last // a notice with a count gets a new At whenever another of its kind arrives
	}
	if batchEnd := since.Add(b.cfg.Batch); now.Before(batchEnd) {
		return batchEnd, nil
	}
	return b.send(ctx, due, s)
}

// send makes one attempt and stores the outcome. After a failure it returns the time of the next attempt. The urgent
// notices come first, because a batch lists only the first maxBatch notices.
func (b *Box) send(ctx context.Context, due []pendingNotice, s Status) (next time.Time, err error) {
	const urgent, other = 0, 1
	rank := func(p pendingNotice) int {
		if slices.Contains(b.cfg.Urgent, p.Kind) {
			return urgent
		}
		return other
	}
	slices.SortStableFunc(due, func(x, y pendingNotice) int { return rank(x) - rank(y) })
	batch := Batch{ID: batchID(due), Urgent: rank(due[0]) == urgent}
	for _, p := range due[:min(len(due), maxBatch)] {
		batch.Notices = append(batch.Notices, b.withLink(ctx, p.Notice))
	}
	batch.More = len(due) - len(batch.Notices)
	limited, cancel := context.WithTimeout(ctx, sendTimeout)
	err = b.cfg.Target.Send(limited, batch)
	cancel()
	if ctx.Err() != nil && err != nil {
		return next, ctx.Err() // the node is stopping; the target did not fail
	}
	ctx = context.WithoutCancel(ctx)
	now := time.Now()
	wasFailing := s.Failures > 0
	if err != nil {
		if s.Failures == 0 {
			s.Since = now.UTC()
		}
		s.Failures++
		s.Error, s.Next = wire.OneLine(err.Error(), maxText), now.Add(pauses[min(s.Failures, len(pauses))-1]).UTC()
		b.cfg.Logger.Warn("notices could not be sent to the owner", "target", b.cfg.Target.Name(), "failures", s.Failures, "next", s.Next, "err", s.Error)
		err = b.cfg.Records.Apply(ctx, []store.Change{s.change()}, now)
	} else {
		s = Status{Last: now.UTC()}
		err = b.clearMarks(ctx, due, s, now)
	}
	if b.cfg.Changed != nil && wasFailing != (s.Failures > 0) {
		b.cfg.Changed()
	}
	return s.Next, err
}

// batchID returns the id of a batch. A further attempt has the same id, unless notices were added or have changed: then
// a receiver that drops repeats must not drop the batch.
func batchID(due []pendingNotice) string {
	h := sha256.New()
	for _, p := range due {
		fmt.Fprintln(h, p.ID, p.Count)
	}
	return "batch_" + hex.EncodeToString(h.Sum(nil)[:16])
}

// withLink adds the link to the question. If it cannot make the link, it only logs the error, because a notice without
// a link is better than no notice.
func (b *Box) withLink(ctx context.Context, n Notice) Notice {
	if n.Ask == "" || b.cfg.Link == nil {
		return n
	}
	var err error
	if n.Link, err = b.cfg.Link(ctx, n.Ask, time.Now()); err != nil {
		b.cfg.Logger.Warn("link for a notice not made; the notice has none", "ask", n.Ask, "err", err)
	}
	return n
}

// clearMarks stores s, and stores that the target has received the notices that the batch lists or counts, except those
// that have changed meanwhile.
func (b *Box) clearMarks(ctx context.Context, due []pendingNotice, s Status, now time.Time) error {
	changes := []store.Change{s.change()}
	for _, p := range due {
		changes = append(changes, p.clearMark())
	}
	err := b.cfg.Records.Apply(ctx, changes, now)
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	for _, c := range changes {
		if err := b.cfg.Records.Apply(ctx, []store.Change{c}, now); err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return nil
}
