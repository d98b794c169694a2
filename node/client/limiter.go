package client

import (
	"context"
	"sync"
)

// limiter bounds the number of concurrent calls, in total and for each host. It remembers a host only while a call to
// it is running or waiting.
type limiter struct {
	all  chan struct{} // has an element for each running call
	each int           // slots of each host

	mu    sync.Mutex
	hosts map[string]*hostLimit
}

type hostLimit struct {
	slots chan struct{}
	users int // calls that hold or wait for a slot
}

func newLimiter(total, each int) *limiter {
	return &limiter{all: make(chan struct{}, total), each: each, hosts: make(map[string]*hostLimit)}
}

// acquire waits for a slot at host until ctx ends. The caller must call release.
func (g *limiter) acquire(ctx context.Context, host string) (release func(), err error) {
	h := g.join(host)
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		g.leave(host, h)
		return nil, ctx.Err()
	}
	select {
	case g.all <- struct{}{}:
	case <-ctx.Done():
		<-h.slots
		g.leave(host, h)
		return nil, ctx.Err()
	}
	return func() {
		<-g.all
		<-h.slots
		g.leave(host, h)
	}, nil
}

// join returns the slots of a host, and counts the caller as their user until it calls leave.
func (g *limiter) join(host string) *hostLimit {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hosts[host]
	if h == nil {
		h = &hostLimit{slots: make(chan struct{}, g.each)}
		g.hosts[host] = h
	}
	h.users++
	return h
}

func (g *limiter) leave(host string, h *hostLimit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(g.hosts, host)
	}
}
