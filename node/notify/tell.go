package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsTelling  = "notify"
	keyTelling = "state"
)

// pauses are the waits after the first failures; the last one repeats.
var pauses = [...]time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour}

// Status is how telling the owner goes. It survives a restart.
type Status struct {
	Target   string    `json:"target,omitempty"` // empty: nothing is told
	Waiting  int       `json:"waiting"`          // notices that the target has not got, at most 1000
	Quiet    bool      `json:"quiet,omitempty"`
	Last     time.Time `json:"last,omitzero"` // when the target last took a batch
	Failures int       `json:"failures,omitempty"`
	Error    string    `json:"error,omitempty"`
	Since    time.Time `json:"failing_since,omitzero"`
	Next     time.Time `json:"next,omitzero"` // attempt after a failure
}

// Status says how telling the owner goes.
func (b *Box) Status(ctx context.Context, now time.Time) (Status, error) {
	if b.cfg.Target == nil {
		return Status{}, nil
	}
	s, err := b.state(ctx, now)
	if err != nil {
		return Status{}, err
	}
	todo, err := b.todo(ctx, now)
	s.Target, s.Waiting, s.Quiet = b.cfg.Target.Name(), len(todo), b.cfg.Quiet.At(now)
	return s, err
}

func (b *Box) state(ctx context.Context, now time.Time) (s Status, err error) {
	rec, err := b.cfg.Records.Get(ctx, nsTelling, keyTelling, now)
	if errors.Is(err, store.ErrNotFound) {
		return Status{}, nil
	}
	if err == nil {
		err = json.Unmarshal(rec.Body, &s)
	}
	if err != nil {
		return Status{}, fmt.Errorf("read state of notices: %w", err)
	}
	return s, nil
}

// save returns the change that stores the state.
func (s Status) save() store.Change {
	s.Target, s.Waiting, s.Quiet = "", 0, false
	body, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("notify: encode: %v", err)) // only fields we filled
	}
	return store.Change{Record: store.Record{NS: nsTelling, Key: keyTelling, Body: body}, IfRev: store.Any}
}

// todo lists what the target has not got, oldest first.
func (b *Box) todo(ctx context.Context, now time.Time) (list []waiting, err error) {
	for after := ""; len(list) < maxTaken; {
		page, err := b.cfg.Records.List(ctx, Namespace, termTodo, after, 100, now)
		if err != nil {
			return nil, fmt.Errorf("list notices: %w", err)
		}
		for _, r := range page.Records {
			n, err := decode(r.Body)
			if err != nil {
				return nil, err
			}
			list = append(list, waiting{n, r})
		}
		if after = page.Next; after == "" {
			break
		}
	}
	return list, nil
}

// Run tells the target what it has not got, in batches, one at a time, until ctx ends. What it has not got then, it
// gets after the next start.
func (b *Box) Run(ctx context.Context) {
	if b.cfg.Target == nil {
		return
	}
	for ctx.Err() == nil {
		next, err := b.work(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			b.cfg.Logger.Error("tell the owner", "err", err)
			next = time.Now().Add(checkBack)
		}
		var due <-chan time.Time
		var timer *time.Timer
		if !next.IsZero() {
			timer = time.NewTimer(min(time.Until(next), checkBack)) // the clock may be set back meanwhile
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-due:
		case <-b.kick:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// work tells what is due and says when to look again, zero where only a new notice is a reason.
func (b *Box) work(ctx context.Context, now time.Time) (next time.Time, err error) {
	todo, err := b.todo(ctx, now)
	if err != nil || len(todo) == 0 {
		return time.Time{}, err
	}
	s, err := b.state(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	due := todo
	if b.cfg.Quiet.At(now) {
		due = slices.DeleteFunc(slices.Clone(todo), func(w waiting) bool { return !slices.Contains(b.cfg.Urgent, w.Kind) })
	}
	switch {
	case len(due) == 0:
		return b.cfg.Quiet.End(now), nil
	case now.Before(s.Next):
		return s.Next, nil
	}
	if gathered := due[0].At.Add(b.cfg.Batch); now.Before(gathered) {
		return gathered, nil
	}
	if err := b.send(ctx, due, s); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}

// send makes one attempt and stores how it ended.
func (b *Box) send(ctx context.Context, due []waiting, s Status) error {
	batch := Batch{ID: due[0].ID}
	for _, w := range due[:min(len(due), maxBatch)] {
		batch.Notices = append(batch.Notices, w.Notice)
		batch.Urgent = batch.Urgent || slices.Contains(b.cfg.Urgent, w.Kind)
	}
	batch.More = len(due) - len(batch.Notices)
	call, cancel := context.WithTimeout(ctx, sendTime)
	err := b.cfg.Target.Send(call, batch)
	cancel()
	if ctx.Err() != nil && err != nil {
		return ctx.Err() // stopping: this was no failure of the target's
	}
	ctx = context.WithoutCancel(ctx)
	now := time.Now()
	failed := s.Failures > 0
	if err != nil {
		if s.Failures == 0 {
			s.Since = now.UTC()
		}
		s.Failures++
		s.Error, s.Next = wire.OneLine(err.Error(), maxText), now.Add(pauses[min(s.Failures, len(pauses))-1]).UTC()
		b.cfg.Logger.Warn("the owner was not told", "target", b.cfg.Target.Name(), "failures", s.Failures, "next", s.Next, "err", s.Error)
		err = b.cfg.Records.Apply(ctx, []store.Change{s.save()}, now)
	} else {
		s = Status{Last: now.UTC()}
		err = b.mark(ctx, due, s, now)
	}
	if b.cfg.Changed != nil && failed != (s.Failures > 0) {
		b.cfg.Changed()
	}
	return err
}

// mark takes the marks of told notices away, but for those that grew meanwhile.
func (b *Box) mark(ctx context.Context, due []waiting, s Status, now time.Time) error {
	changes := []store.Change{s.save()}
	for _, w := range due {
		changes = append(changes, w.told())
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
