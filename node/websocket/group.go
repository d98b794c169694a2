package websocket

import (
	"sync"
	"time"
)

// Group holds the open connections of a server, to close them together. The zero value is an empty group. It is safe for
// concurrent use.
type Group struct {
	mu      sync.Mutex
	closed  bool
	open    map[*Conn]struct{}
	running sync.WaitGroup
}

// Enter adds a connection. It returns how to close the connection instead if the group is closed, or has limit
// connections. Otherwise the caller calls Leave when nobody uses the connection any longer.
func (g *Group) Enter(c *Conn, limit int) *CloseError {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return &CloseError{Code: CodeGoingAway, Reason: "going down"}
	case len(g.open) >= limit:
		return &CloseError{Code: CodeTryLater, Reason: "too many connections"}
	}
	if g.open == nil {
		g.open = make(map[*Conn]struct{})
	}
	g.open[c] = struct{}{}
	g.running.Add(1)
	return nil
}

// Leave removes a connection.
func (g *Group) Leave(c *Conn) {
	g.mu.Lock()
	delete(g.open, c)
	g.mu.Unlock()
	g.running.Done()
}

// Len returns the number of connections.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open)
}

// Open lets connections enter again after Close.
func (g *Group) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}

// Close closes all connections with 1001 after their queued frames, and returns when all have left. It aborts those that
// are still open after patience.
func (g *Group) Close(patience time.Duration) {
	g.each(func(c *Conn) { c.Close(CodeGoingAway, "going down") })
	abort := time.AfterFunc(patience, func() { g.each((*Conn).Abort) })
	defer abort.Stop()
	g.running.Wait()
}

// each closes the group and calls do for each connection.
func (g *Group) each(do func(*Conn)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for c := range g.open {
		do(c)
	}
}
