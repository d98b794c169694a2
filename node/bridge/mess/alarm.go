package mess

import (
	"container/heap"
	"time"
)

// alarm is a time at which a thread may change by itself.
type alarm struct {
	at  time.Time
	ref string
}

// nextMilli is the first whole millisecond that is not before at. A unit dates itself in such, and in the one before it nothing
// is due yet.
func nextMilli(at time.Time) time.Time {
	return at.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}

// alarms is a heap, the earliest first.
type alarms []alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a alarms) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }

// Push implements [heap.Interface].
func (a *alarms) Push(x any) { *a = append(*a, x.(alarm)) }

// Pop implements [heap.Interface].
func (a *alarms) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// due takes the alarms that went off, at most limit, and says when the next one will.
func (x *index) due(now time.Time, limit int) (rung []alarm, next time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.alarms) > 0 && len(rung) < limit && !x.alarms[0].at.After(now) {
		rung = append(rung, heap.Pop(&x.alarms).(alarm))
	}
	if len(x.alarms) > 0 {
		next = x.alarms[0].at
	}
	return rung, next
}

// again sets an alarm anew.
func (x *index) again(a alarm) {
	x.mu.Lock()
	defer x.mu.Unlock()
	heap.Push(&x.alarms, a)
	x.ring()
}

// ring has who sleeps until the next alarm look when that is.
func (x *index) ring() {
	select {
	case x.alarmSet <- struct{}{}:
	default:
	}
}
