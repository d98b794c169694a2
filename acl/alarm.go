package acl

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

// maxSleep is the longest sleep before the alarm compares its time with the clock again. Without it, a timer set while
// the clock was an hour slow would fire an hour late.
const maxSleep = 10 * time.Minute

// minCheckGap is the minimum time between two checks. A check reads every pending question, so one check handles all
// questions that expire shortly after one another.
const minCheckGap = 30 * time.Second

// Alarm holds the time at which the next pending ask expires. An ask is a question for the owner.
type Alarm struct {
	wake chan struct{} // has room for one signal that the alarm is now set to an earlier time

	mu sync.Mutex
	at time.Time // the zero time: no question expires
}

// NewAlarm returns an alarm that is not set.
func NewAlarm() *Alarm { return &Alarm{wake: make(chan struct{}, 1)} }

// Advance sets the alarm to the time t, unless it is already set to an earlier time.
func (a *Alarm) Advance(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && !t.Before(a.at) {
		return
	}
	a.at = t
	waiting.Wake(a.wake)
}

func (a *Alarm) next() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

func (a *Alarm) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = time.Time{}
}

// AfterCommit advances the alarm to the expiry of each question that these committed changes opened.
func (a *Alarm) AfterCommit(changes []store.Change) {
	for _, c := range changes {
		if end, ok := readOpened(c); ok {
			a.Advance(end)
		}
	}
}

// Watch calls check each time the alarm goes off, until ctx ends. It also calls check at the start, unless the alarm is
// already set to a later time.
func (a *Alarm) Watch(ctx context.Context, check func(ctx context.Context, now time.Time)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	checked := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
			if at := a.next(); !at.IsZero() {
				timer.Reset(a.wait(at, checked))
			}
		case now := <-timer.C:
			if at := a.next(); at.After(now) {
				timer.Reset(a.wait(at, checked))
				continue
			}
			checked = now
			a.clear() // check sets it again for the questions that expire later
			check(ctx, checked)
		}
	}
}

// wait returns how long to sleep before the next check, which is due at the given time. checked is the time of the last
// check.
func (a *Alarm) wait(due, checked time.Time) time.Duration {
	return min(max(time.Until(due), time.Until(checked.Add(minCheckGap))), maxSleep)
}

// readOpened returns the expiry of the pending ask that the change stores. ok is false if it stores no pending ask.
func readOpened(c store.Change) (end time.Time, ok bool) {
	// An ask that is queued behind another has termBehind in place of its state.
	isPending := func(term string) bool { return term == "state:"+string(AskPending) || term == termBehind }
	if c.Delete || c.Record.NS != AskNamespace || !slices.ContainsFunc(c.Record.Terms, isPending) {
		return end, false
	}
	s, err := decodeAsk(c.Record)
	return s.expiry(), err == nil && s.State == AskPending
}
