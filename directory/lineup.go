package directory

import (
	"sync"
	"time"
)

// Bounds of the line of endpoints that wait to be asked.
const (
	hostPause   = time.Minute // between two questions to one host (AM-63)
	maxLine     = 10_000      // cards in the line
	maxHostLine = 100         // cards of one host in the line: the others wait for the next walk
	maxHosts    = 1 << 16     // hosts whose pause we remember; beyond that nobody is asked
)

// asked is a card whose endpoint is to be asked.
type asked struct{ id, host string }

// lineup decides who is asked when: each host once a minute, however many cards name it, so that a directory cannot be
// made to attack anybody (AM-63). It is safe for concurrent use.
type lineup struct {
	mu     sync.Mutex
	line   []asked
	in     map[asked]bool
	byHost map[string]int
	paused map[string]time.Time // host: when it may be asked again
	swept  time.Time            // when pauses that are over were last looked for

	added chan struct{} // holds one when a card came
}

func newLineup() *lineup {
	return &lineup{in: make(map[asked]bool), byHost: make(map[string]int), paused: make(map[string]time.Time), added: make(chan struct{}, 1)}
}

// add puts a card into the line and says whether it is there.
func (l *lineup) add(a asked) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.in[a]:
		return true
	case len(l.line) >= maxLine || l.byHost[a.host] >= maxHostLine:
		return false
	}
	l.line = append(l.line, a)
	l.in[a] = true
	l.byHost[a.host]++
	select {
	case l.added <- struct{}{}:
	default:
	}
	return true
}

// next takes at most n cards out of the line whose hosts may be asked at now, and begins the pauses of those. again is
// when another one may be asked: the zero time where none waits.
func (l *lineup) next(now time.Time, n int) (ready []asked, again time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.line[:0]
	for _, a := range l.line {
		until := l.paused[a.host]
		if !now.Before(until) && !l.room(now, a.host) {
			until = now.Add(hostPause / 10)
		}
		if len(ready) == n || now.Before(until) {
			kept = append(kept, a)
			if again.IsZero() || until.Before(again) {
				again = later(until, now)
			}
			continue
		}
		l.paused[a.host] = now.Add(hostPause)
		delete(l.in, a)
		if l.byHost[a.host]--; l.byHost[a.host] == 0 {
			delete(l.byHost, a.host)
		}
		ready = append(ready, a)
	}
	clear(l.line[len(kept):])
	l.line = kept
	return ready, again
}

// room says whether the pause of host can be remembered, and forgets those that are over where there are too many.
func (l *lineup) room(now time.Time, host string) bool {
	if _, known := l.paused[host]; known || len(l.paused) < maxHosts {
		return true
	}
	if now.Sub(l.swept).Abs() < hostPause/10 {
		return false
	}
	l.swept = now
	for h, until := range l.paused {
		if !now.Before(until) {
			delete(l.paused, h)
		}
	}
	return len(l.paused) < maxHosts
}

func (l *lineup) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.line)
}
