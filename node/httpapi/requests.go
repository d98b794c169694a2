package httpapi

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// requests counts the requests of one listener. A nil *requests counts nothing.
//
// A series is created when its first request ends. The number of series is at most routes × method classes × status
// classes, because a route is a pattern that a service mounted, never a path.
type requests struct {
	m        *Metrics
	listener string
	route    string // the route of every request; "" for the pattern that a request matched
	inFlight atomic.Int64

	mu    sync.Mutex                                  // guards additions to cells
	cells atomic.Pointer[map[requestKind]requestCell] // replaced as a whole, so that readers need no lock
}

type requestKind struct {
	route  string
	method string
	status int // 2 for 2xx
}

type requestCell struct {
	count *Counter
	took  *Histogram // shared by the kinds of a route
}

// latencyBounds range from the time of a cached card to the write time-out of the listener, in seconds.
var latencyBounds = []float64{0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 20, 60}

func newRequests(m *Metrics, listener, route string) *requests {
	r := &requests{m: m, listener: listener, route: route}
	r.cells.Store(&map[requestKind]requestCell{})
	m.Gauge("http_requests_in_flight", "Requests in flight, including long-lived connections, but not polls that wait for mail over plain HTTP/1.1.",
		func() float64 { return float64(r.inFlight.Load()) }, "listener", listener)
	return r
}

func (r *requests) enter() {
	if r != nil {
		r.inFlight.Add(1)
	}
}

func (r *requests) leave() {
	if r != nil {
		r.inFlight.Add(-1)
	}
}

// finish counts a finished request. pattern is the route that matched, or "".
func (r *requests) finish(pattern, method string, status int, took time.Duration) {
	if r == nil {
		return
	}
	kind := requestKind{route: pattern, method: methodClass(method), status: statusClass(status)}
	switch {
	case r.route != "":
		kind.route = r.route
	case pattern == "":
		kind.route = "none"
	}
	cell, ok := (*r.cells.Load())[kind]
	if !ok {
		cell = r.add(kind)
	}
	cell.count.Inc()
	if status != http.StatusSwitchingProtocols { // the lifetime of an upgraded connection is not a response time
		cell.took.Observe(took.Seconds())
	}
}

// add creates the series of a kind of request, unless another request has created them meanwhile.
func (r *requests) add(kind requestKind) requestCell {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.cells.Load()
	if cell, ok := old[kind]; ok {
		return cell
	}
	cell := requestCell{count: r.m.Counter("http_requests_total", "Finished requests.",
		"listener", r.listener, "route", kind.route, "method", kind.method, "status", strconv.Itoa(kind.status)+"xx")}
	for other, c := range old {
		if other.route == kind.route {
			cell.took = c.took
			break
		}
	}
	if cell.took == nil {
		cell.took = r.m.Histogram("http_request_seconds", "Time from a request's header to the end of its response, without upgraded connections.",
			latencyBounds, "listener", r.listener, "route", kind.route)
	}
	cells := maps.Clone(old)
	cells[kind] = cell
	r.cells.Store(&cells)
	return cell
}

// methodClass returns read, write or other, for metrics, because a client can invent any number of methods.
func methodClass(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "read"
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return "write"
	}
	return "other"
}

func statusClass(status int) int {
	if status < 100 || status > 599 {
		return 5
	}
	return status / 100
}
