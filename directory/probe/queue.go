// Package probe proves the endpoints of cards: it decides when a directory probes each one, and probes it.
package probe

import (
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
)

// Bounds of the probe queue.
const (
	HostPause = time.Minute // between two probes of one host (AM-63)
	maxQueue  = 10_000      // cards in the queue
	MaxOfHost = 100         // queued cards of one host; the next walk over all cards finds the others
	maxHosts  = 1 << 16     // hosts whose pause is remembered; a full list delays the probes of other hosts
)

// Target is the id of a card, and the host of the endpoint to probe.
type Target struct{ ID, Host string }

// Queue decides when each endpoint is probed. It allows one probe of a host per minute, however many cards name the
// host, so that nobody can make the directory attack it (AM-63). Queue is safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	targets []Target // oldest first
	queued  map[Target]bool
	byHost  map[string]int       // number of queued cards
	paused  map[string]time.Time // when a host may be probed again
	swept   time.Time            // when expired pauses were last removed

	added chan struct{} // has one value after a card was added
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{queued: make(map[Target]bool), byHost: make(map[string]int), paused: make(map[string]time.Time), added: make(chan struct{}, 1)}
}

// Added returns a channel that has a value after a card was added.
func (q *Queue) Added() <-chan struct{} { return q.added }

// Add appends a card to the queue, unless it is already there or the queue is full.
func (q *Queue) Add(t Target) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queued[t] || len(q.targets) >= maxQueue || q.byHost[t.Host] >= MaxOfHost {
		return
	}
	q.targets = append(q.targets, t)
	q.queued[t] = true
	q.byHost[t.Host]++
	waiting.Wake(q.added)
}

// Next removes at most n cards whose hosts may be probed at now, and starts the pauses of those hosts. nextAt is when
// the next card may be probed: zero if the queue is empty.
func (q *Queue) Next(now time.Time, n int) (ready []Target, nextAt time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := q.targets[:0]
	for _, t := range q.targets {
		until := q.paused[t.Host]
		if !now.Before(until) && !q.hasPauseRoom(now, t.Host) {
			until = now.Add(HostPause / 10)
		}
		if len(ready) == n || now.Before(until) {
			kept = append(kept, t)
			if nextAt.IsZero() || until.Before(nextAt) {
				nextAt = until
				if nextAt.Before(now) {
					nextAt = now
				}
			}
			continue
		}
		q.paused[t.Host] = now.Add(HostPause)
		delete(q.queued, t)
		if q.byHost[t.Host]--; q.byHost[t.Host] == 0 {
			delete(q.byHost, t.Host)
		}
		ready = append(ready, t)
	}
	clear(q.targets[len(kept):])
	q.targets = kept
	return ready, nextAt
}

// hasPauseRoom reports whether the pause of host can be remembered. To make room, it removes expired pauses.
func (q *Queue) hasPauseRoom(now time.Time, host string) bool {
	if _, known := q.paused[host]; known || len(q.paused) < maxHosts {
		return true
	}
	if now.Sub(q.swept).Abs() < HostPause/10 {
		return false
	}
	q.swept = now
	for h, until := range q.paused {
		if !now.Before(until) {
			delete(q.paused, h)
		}
	}
	return len(q.paused) < maxHosts
}

// Len returns the number of cards in the queue.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.targets)
}
