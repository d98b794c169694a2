package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
)

// lookAgain is how soon an alarm is looked at again. A timer that was set while the clock was an hour slow would go off an
// hour late.
const lookAgain = 10 * time.Minute

// betweenEnds is how long the questions that end after one another are left to gather: what waits for a decision is read
// whole when one has ended.
const betweenEnds = 30 * time.Second

// alarm knows when the next question ends about which the owner was not heard.
type alarm struct {
	moved chan struct{} // has room for one word that at is sooner

	mu sync.Mutex
	at time.Time // zero: nothing is to end
}

func newAlarm() *alarm { return &alarm{moved: make(chan struct{}, 1)} }

// sooner sets the alarm to at, unless it is set to an earlier time.
func (a *alarm) sooner(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	a.at = at
	select {
	case a.moved <- struct{}{}:
	default:
	}
}

// next is what the alarm is set to.
func (a *alarm) next() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// clear sets the alarm to nothing.
func (a *alarm) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = time.Time{}
}

// committed sets the alarm for the questions that a committed unit opens.
func (a *alarm) committed(changes []store.Change) {
	for _, c := range changes {
		if end, ok := acl.Opens(c); ok {
			a.sooner(end)
		}
	}
}

// watch calls look when the alarm goes off, until ctx ends, and once when it begins. It sleeps in between: where nothing
// is to end, nothing wakes it.
func (a *alarm) watch(ctx context.Context, look func(ctx context.Context, now time.Time)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	looked := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.moved:
			if at := a.next(); !at.IsZero() {
				timer.Reset(a.wait(at, looked))
			}
		case now := <-timer.C:
			if at := a.next(); at.After(now) {
				timer.Reset(a.wait(at, looked))
				continue
			}
			looked = now
			a.clear() // what is to end after this is set again
			look(ctx, looked)
		}
	}
}

// wait returns how long to sleep for an alarm at that time.
func (a *alarm) wait(at, looked time.Time) time.Duration {
	return min(max(time.Until(at), time.Until(looked.Add(betweenEnds))), lookAgain)
}

// endQuestions ends the wait of messages about which nobody can decide any more, and tries again soon where it cannot.
func (n *Node) endQuestions(ctx context.Context, now time.Time) {
	if !n.clock.Reliable() { // what ended stays so when the clock is right again
		n.ends.sooner(now.Add(lookAgain))
		return
	}
	if err := n.questionsEnded(ctx, now); err != nil && ctx.Err() == nil {
		n.log.Warn("settle held messages", "err", err)
		n.ends.sooner(now.Add(betweenEnds))
	}
}

// questionsEnded settles and writes down what has expired, and sets the alarm for what is next.
func (n *Node) questionsEnded(ctx context.Context, now time.Time) error {
	if err := n.settleHeld(ctx, now); err != nil {
		return err
	}
	if err := n.auditExpired(ctx, now); err != nil {
		return err
	}
	for after := ""; ; {
		asks, next, err := n.asks.List(ctx, acl.AskFilter{State: acl.AskPending}, after, 100, now)
		if err != nil {
			return err
		}
		if len(asks) > 0 {
			n.ends.sooner(slices.MinFunc(asks, func(x, y acl.Ask) int { return x.Expires.Compare(y.Expires) }).Expires)
		}
		if after = next; after == "" {
			return nil
		}
	}
}
