package agentrelay

import (
	"sync"
	"time"
)

// window counts what happened in the last sixty units of time, by the unit: it looks back over one more than sixty, so
// that it never leaves out anything.
type window struct {
	unit  time.Duration
	last  int64 // the unit that was looked at last, of our own clock
	ahead int64 // units that our own clock is ahead of the callers': theirs may be set back
	slots [61]uint32
	sum   int
}

// count returns how much there was up to now.
func (w *window) count(now time.Time) int {
	at := now.UnixNano()/int64(w.unit) + w.ahead
	if back := w.last - at; back > 1 { // callers at work at the same time are a little out of order
		at, w.ahead = w.last, w.ahead+back
	}
	for w.last = max(w.last, at-int64(len(w.slots))); w.last < at; {
		w.last++
		w.sum -= int(*w.slot(w.last))
		*w.slot(w.last) = 0
	}
	return w.sum
}

func (w *window) slot(at int64) *uint32 { return &w.slots[at%int64(len(w.slots))] }

func (w *window) add(now time.Time) {
	w.count(now)
	*w.slot(w.last)++
	w.sum++
}

// wait returns how long it takes until the count is below limit.
func (w *window) wait(limit int, now time.Time) time.Duration {
	over := w.count(now) - limit
	if limit <= 0 || over < 0 {
		return 0
	}
	for at := w.last - int64(len(w.slots)) + 1; ; at++ {
		if over -= int(*w.slot(at)); over < 0 {
			return time.Unix(0, (at-w.ahead+int64(len(w.slots)))*int64(w.unit)).Sub(now)
		}
	}
}

// allowance is how much somebody may send in any minute and in any hour (AR-31, AR-53). Buckets that fill up again, as
// elsewhere in this program, would let twice as much pass in the first hour. A limit of 0 or less is none.
type allowance struct {
	perMinute, perHour int

	mu           sync.Mutex
	minute, hour window
}

func newAllowance(perMinute, perHour int) *allowance {
	return &allowance{perMinute: perMinute, perHour: perHour, minute: window{unit: time.Second}, hour: window{unit: time.Minute}}
}

// wait returns how long it takes until one more may be sent.
func (a *allowance) wait(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.minute.wait(a.perMinute, now), a.hour.wait(a.perHour, now))
}

// take spends one, or says how long it takes until there is one.
func (a *allowance) take(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait := max(a.minute.wait(a.perMinute, now), a.hour.wait(a.perHour, now)); wait > 0 {
		return wait
	}
	a.minute.add(now)
	a.hour.add(now)
	return 0
}

// whole says whether nothing was spent in the last hour.
func (a *allowance) whole(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hour.count(now) == 0
}
