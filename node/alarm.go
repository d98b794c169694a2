package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
)

// maxSleep is the longest sleep before the alarm compares its time with the clock again. A timer that was set while the
// clock was an hour slow would otherwise fire an hour late.
const maxSleep = 10 * time.Minute

// minCheckGap is the minimum time between two checks for expired questions. Each check reads every question that waits
// for a decision, so questions that expire shortly after one another are settled in one check.
const minCheckGap = 30 * time.Second

// alarm holds the time at which the next undecided question expires.
type alarm struct {
	changed chan struct{} // has room for one signal that at is earlier now

	mu sync.Mutex
	at time.Time // the zero time: no question expires
}

func newAlarm() *alarm { return &alarm{changed: make(chan struct{}, 1)} }

// advance sets the alarm to at, unless it is already set to an earlier time.
func (a *alarm) advance(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	a.at = at
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// next returns the time that the alarm is set to.
func (a *alarm) next() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// clear unsets the alarm.
func (a *alarm) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = time.Time{}
}

// onCommit sets the alarm for the questions that a committed unit opens.
func (a *alarm) onCommit(changes []store.Change) {
	for _, c := range changes {
		if end, ok := acl.Opens(c); ok {
			a.advance(end)
		}
	}
}

// watch calls check at the start and each time the alarm goes off, until ctx ends. In between it sleeps.
func (a *alarm) watch(ctx context.Context, check func(ctx context.Context, now time.Time)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	checked := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
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

// wait returns how long to sleep for an alarm set to at. checked is the time of the last check.
func (a *alarm) wait(at, checked time.Time) time.Duration {
	return min(max(time.Until(at), time.Until(checked.Add(minCheckGap))), maxSleep)
}

// settleExpiredAsks settles the messages whose question has expired. After an error it sets the alarm to try again soon.
func (n *Node) settleExpiredAsks(ctx context.Context, now time.Time) {
	if !n.clock.Reliable() { // an expired question is still expired when the clock is right again
		n.expiryAlarm.advance(now.Add(maxSleep))
		return
	}
	if err := n.settleAndRearm(ctx, now); err != nil && ctx.Err() == nil {
		n.log.Warn("settle held messages", "err", err)
		n.expiryAlarm.advance(now.Add(minCheckGap))
	}
}

// settleAndRearm settles and audits the expired questions, and sets the alarm for the next one.
func (n *Node) settleAndRearm(ctx context.Context, now time.Time) error {
	if err := n.settleExpiredItems(ctx, now); err != nil {
		return err
	}
	if err := n.auditExpiry(ctx, now); err != nil {
		return err
	}
	for after := ""; ; {
		asks, next, err := n.asks.List(ctx, acl.AskFilter{State: acl.AskPending}, after, 100, now)
		if err != nil {
			return err
		}
		if len(asks) > 0 {
			n.expiryAlarm.advance(slices.MinFunc(asks, func(x, y acl.Ask) int { return x.Expires.Compare(y.Expires) }).Expires)
		}
		if after = next; after == "" {
			return nil
		}
	}
}
