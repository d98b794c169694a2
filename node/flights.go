package node

import (
	"context"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
)

// maxFlights bounds the acceptances under way. Each costs a request that is already inside the connection caps.
const maxFlights = 4096

// flights lets one acceptance per key run at a time: of two copies of a message that arrive together, the second
// waits for the answer that the first one gets (AM-21).
type flights struct {
	mu    sync.Mutex
	under map[string]*flight
}

type flight struct {
	turn    chan struct{} // holds one token while nobody has the flight
	waiting int           // who has it or waits for it; guarded by flights.mu
}

// enter waits for key and returns what ends the stay. Where ctx ends first it returns ctx's error.
func (f *flights) enter(ctx context.Context, key string) (leave func(), err error) {
	f.mu.Lock()
	fl := f.under[key]
	if fl == nil {
		if len(f.under) >= maxFlights {
			f.mu.Unlock()
			return nil, wire.ErrUnavailable
		}
		fl = &flight{turn: make(chan struct{}, 1)}
		fl.turn <- struct{}{}
		f.under[key] = fl
	}
	fl.waiting++
	f.mu.Unlock()

	select {
	case <-fl.turn:
		return func() { fl.turn <- struct{}{}; f.drop(key, fl) }, nil
	case <-ctx.Done():
		f.drop(key, fl)
		return nil, ctx.Err()
	}
}

func (f *flights) drop(key string, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiting--; fl.waiting == 0 {
		delete(f.under, key)
	}
}

// signal wakes everyone who waits, each time it is given.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that closes at the next give.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
