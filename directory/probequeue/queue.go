// Package probequeue decides when a directory probes each endpoint.
package probequeue

import (
	"sync"
	"time"
)

// Bounds of the probe queue.
const (
	HostPause = time.Minute // between two probes of one host (AM-63)
	maxQueue  = 10_000      // cards in the queue
	MaxOfHost = 100         // queued cards of one host; the next walk over all cards finds the others
	maxHosts  = 1 << 16     // hosts whose pause is remembered; while there are so many, no other host is probed
)

// Target is a card whose endpoint is to be probed.
type Target struct{ ID, Host string }

// Queue decides when each endpoint is probed. It allows one probe of a host per minute, however many cards name
// that host, so that nobody can make the directory attack a host (AM-63). It is safe for concurrent use.
type Queue struct {
	mu     sync.Mutex
	line   []Target
	in     map[Target]bool
	byHost map[string]int
	paused map[string]time.Time // host: when it may be probed again
	swept  time.Time            // when expired pauses were last removed

	added chan struct{} // has one value after a card was added
}

// New returns an empty queue.
func New() *Queue {
	return &Queue{in: make(map[Target]bool), byHost: make(map[string]int), paused: make(map[string]time.Time), added: make(chan struct{}, 1)}
}

// Added returns a channel that has a value after a card was added.
func (l *Queue) Added() <-chan struct{} { return l.added }

// Add appends a card to the queue and reports whether the card is queued.
func (l *Queue) Add(a Target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.in[a]:
		return true
	case len(l.line) >= maxQueue || l.byHost[a.Host] >= MaxOfHost:
		return false
	}
	l.line = append(l.line, a)
	l.in[a] = true
	l.byHost[a.Host]++
	select {
	case l.added <- struct{}{}:
	default:
	}
	return true
}

// Next removes at most n cards whose hosts may be probed at now, and starts the pauses of those hosts. It also returns
// when the next card may be probed: the zero time if the queue is empty.
func (l *Queue) Next(now time.Time, n int) (ready []Target, again time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.line[:0]
	for _, a := range l.line {
		until := l.paused[a.Host]
		if !now.Before(until) && !l.hasPauseRoom(now, a.Host) {
			until = now.Add(HostPause / 10)
		}
		if len(ready) == n || now.Before(until) {
			kept = append(kept, a)
			if again.IsZero() || until.Before(again) {
				again = until
				if again.Before(now) {
					again = now
				}
			}
			continue
		}
		l.paused[a.Host] = now.Add(HostPause)
		delete(l.in, a)
		if l.byHost[a.Host]--; l.byHost[a.Host] == 0 {
			delete(l.byHost, a.Host)
		}
		ready = append(ready, a)
	}
	clear(l.line[len(kept):])
	l.line = kept
	return ready, again
}

// hasPauseRoom reports whether the pause of host can be remembered. If there are too many pauses, it first removes the
// expired ones.
func (l *Queue) hasPauseRoom(now time.Time, host string) bool {
	if _, known := l.paused[host]; known || len(l.paused) < maxHosts {
		return true
	}
	if now.Sub(l.swept).Abs() < HostPause/10 {
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

// Len returns the number of cards in the queue.
func (l *Queue) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.line)
}
