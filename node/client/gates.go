package client

import (
	"context"
	"sync"
)

// gates lets a bounded number of calls through, in all and per host. It remembers a host only while a call to it
// goes on or waits.
type gates struct {
	all  chan struct{}
	each int

	mu    sync.Mutex
	hosts map[string]*gate
}

type gate struct {
	places chan struct{}
	users  int // calls that hold or want a place
}

func newGates(inAll, each int) *gates {
	return &gates{all: make(chan struct{}, inAll), each: each, hosts: make(map[string]*gate)}
}

// enter waits for a place at host until ctx ends; the caller gives it back with release.
func (g *gates) enter(ctx context.Context, host string) (release func(), err error) {
	at := g.join(host)
	select {
	case at.places <- struct{}{}:
	case <-ctx.Done():
		g.leave(host, at)
		return nil, ctx.Err()
	}
	select {
	case g.all <- struct{}{}:
	case <-ctx.Done():
		<-at.places
		g.leave(host, at)
		return nil, ctx.Err()
	}
	return func() {
		<-g.all
		<-at.places
		g.leave(host, at)
	}, nil
}

func (g *gates) join(host string) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.hosts[host]
	if at == nil {
		at = &gate{places: make(chan struct{}, g.each)}
		g.hosts[host] = at
	}
	at.users++
	return at
}

func (g *gates) leave(host string, at *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at.users--; at.users == 0 {
		delete(g.hosts, host)
	}
}
