package hook

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// RouteStats counts the runs of one route (a configured way to a hook, or a kind of bridge) since the process started.
type RouteStats struct {
	Route    string
	Runs     int
	Failures int
	LastAt   time.Time // of the newest failure
	Last     Fault     // fault of the newest failure; "" if its error is not an [Error], as after a panic or from a bridge
}

// Stats counts runs and failures. It is safe for concurrent use. NewPool makes it.
type Stats struct {
	mu     sync.Mutex
	routes map[string]*RouteStats // one for each configured route and each kind of bridge
}

// Add counts one run of a route; err is why it failed, or nil.
func (s *Stats) Add(route string, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.routes[route]
	if r == nil {
		r = &RouteStats{Route: route}
		s.routes[route] = r
	}
	r.Runs++
	if err != nil {
		r.Failures++
		r.LastAt, r.Last = now, FaultOf(err)
	}
}

// List returns the counts of all routes that ran, by name.
func (s *Stats) List() []RouteStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []RouteStats
	for _, r := range s.routes {
		list = append(list, *r)
	}
	slices.SortFunc(list, func(a, b RouteStats) int { return cmp.Compare(a.Route, b.Route) })
	return list
}
