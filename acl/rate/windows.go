package rate

import (
	"sync"
	"time"
)

// Window counts the events of the last sixty units of time, plus one unit so that it never misses an event. It is not
// safe for concurrent use.
type Window struct {
	unit  time.Duration
	last  int64 // the latest unit, by the window's own clock
	ahead int64 // units by which the window's clock is ahead of the callers' clock, which may be set back
	slots [61]uint32
	sum   int
}

// NewWindow returns an empty window of sixty units.
func NewWindow(unit time.Duration) Window { return Window{unit: unit} }

// Count returns the number of events in the window that ends now.
func (w *Window) Count(now time.Time) int {
	current := now.UnixNano()/int64(w.unit) + w.ahead
	if back := w.last - current; back > 1 { // concurrent callers may pass times that are slightly out of order
		current, w.ahead = w.last, w.ahead+back
	}
	// Clear the slots of the units since the last call, each of them only once.
	for w.last = max(w.last, current-int64(len(w.slots))); w.last < current; {
		w.last++
		w.sum -= int(*w.slot(w.last))
		*w.slot(w.last) = 0
	}
	return w.sum
}

func (w *Window) slot(unit int64) *uint32 { return &w.slots[unit%int64(len(w.slots))] }

// Add counts one event.
func (w *Window) Add(now time.Time) {
	w.Count(now)
	*w.slot(w.last)++
	w.sum++
}

// remove takes back an event that Add counted at the given time, if the window still contains that time.
func (w *Window) remove(at time.Time) {
	unit := at.UnixNano()/int64(w.unit) + w.ahead
	if slot := w.slot(unit); unit > w.last-int64(len(w.slots)) && unit <= w.last && *slot > 0 {
		*slot--
		w.sum--
	}
}

// wait returns how long it takes until the count is below limit. A limit of 0 or less is switched off.
func (w *Window) wait(limit int, now time.Time) time.Duration {
	excess := w.Count(now) - limit
	if limit <= 0 || excess < 0 {
		return 0
	}
	for unit := w.last - int64(len(w.slots)) + 1; ; unit++ {
		if excess -= int(*w.slot(unit)); excess < 0 {
			return time.Unix(0, (unit-w.ahead+int64(len(w.slots)))*int64(w.unit)).Sub(now)
		}
	}
}

// Windows limit how much a sender sends in any minute and in any hour. [Buckets] would permit twice as much in the
// first hour, because they start full and refill. A limit of 0 or less is switched off. Windows are safe for concurrent
// use.
type Windows struct {
	perMinute, perHour int

	mu           sync.Mutex
	minute, hour Window
}

// NewWindows returns windows in which nothing was sent yet.
func NewWindows(perMinute, perHour int) *Windows {
	return NewShortWindows(perMinute, perHour, time.Second)
}

// NewShortWindows is NewWindows for tests, with seconds of the given length.
func NewShortWindows(perMinute, perHour int, second time.Duration) *Windows {
	return &Windows{perMinute: perMinute, perHour: perHour, minute: NewWindow(second), hour: NewWindow(60 * second)}
}

// Peek returns how long the sender must wait.
func (w *Windows) Peek(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.minute.wait(w.perMinute, now), w.hour.wait(w.perHour, now))
}

// Take counts one message, or returns how long the sender must wait.
func (w *Windows) Take(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if wait := max(w.minute.wait(w.perMinute, now), w.hour.wait(w.perHour, now)); wait > 0 {
		return wait
	}
	w.minute.Add(now)
	w.hour.Add(now)
	return 0
}

// Return takes back a message that Take counted at the given time, but that was not sent.
func (w *Windows) Return(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.minute.remove(at)
	w.hour.remove(at)
}

// Count returns how many messages were sent in the last hour.
func (w *Windows) Count(now time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hour.Count(now)
}
