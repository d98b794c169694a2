package bridge

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
)

// WatchLinks tests the links of a service that keeps no connections, now and every ten minutes, so that the owner sees a
// link that does not answer. It leaves out links that are down, and returns when ctx ends.
func WatchLinks(ctx context.Context, s interface {
	Links() []LinkStatus
	Test(ctx context.Context, link string) error
}) {
	const every, patience = 10 * time.Minute, 30 * time.Second
	for tick := time.Tick(every); ctx.Err() == nil; {
		testing, cancel := context.WithTimeout(ctx, patience)
		var tests sync.WaitGroup
		for _, l := range s.Links() {
			if l.State != LinkDown {
				tests.Go(func() { _ = s.Test(testing, l.Name) }) // Test records the error
			}
		}
		tests.Wait()
		cancel()
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// RunningLink is a link with a connection of its own.
type RunningLink interface {
	Status() LinkStatus
	// Run keeps the link connected until ctx ends, and returns when everything that it started has stopped. A link runs
	// once.
	Run(ctx context.Context) error
}

// LinkSet holds the links of a service. Each starts and stops without the others, also while the set runs. The zero
// value is an empty set. A LinkSet is safe for concurrent use.
type LinkSet[L RunningLink] struct {
	changing sync.Mutex        // held to start and stop links
	start    func(L) func()    // starts a link and returns what stops it; nil while the set does not run; under changing
	stops    map[string]func() // of the links that run, by name; under changing

	mu      sync.Mutex
	links   []L // replaced, never changed
	changed waiting.Signal
}

// NextChange returns a channel that is closed when a link is added or removed.
func (s *LinkSet[L]) NextChange() <-chan struct{} { return s.changed.Wait() }

// replace stores the links. The caller holds changing.
func (s *LinkSet[L]) replace(links []L) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = links
	s.changed.Broadcast()
}

// All returns the links in the order in which they were added.
func (s *LinkSet[L]) All() []L {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links
}

// Find returns the link with a name. ok is false if there is none.
func (s *LinkSet[L]) Find(name string) (l L, ok bool) {
	all := s.All()
	if i := slices.IndexFunc(all, func(l L) bool { return l.Status().Name == name }); i >= 0 {
		return all[i], true
	}
	return l, false
}

// States returns the state of each link.
func (s *LinkSet[L]) States() []LinkStatus {
	out := []LinkStatus{}
	for _, l := range s.All() {
		out = append(out, l.Status())
	}
	return out
}

// Put adds a link, and starts it if the set runs. A link with the same name stops first.
func (s *LinkSet[L]) Put(l L) {
	s.changing.Lock()
	defer s.changing.Unlock()
	name := l.Status().Name
	s.remove(name)
	s.replace(append(slices.Clip(s.All()), l))
	if s.start != nil {
		s.stops[name] = s.start(l)
	}
}

// Remove stops the link with a name and removes it.
func (s *LinkSet[L]) Remove(name string) {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.remove(name)
}

func (s *LinkSet[L]) remove(name string) {
	if stop := s.stops[name]; stop != nil {
		stop()
		delete(s.stops, name)
	}
	s.replace(slices.DeleteFunc(slices.Clone(s.All()), func(l L) bool { return l.Status().Name == name }))
}

// Run runs the links until ctx ends or one of them fails, and returns when all have stopped.
func (s *LinkSet[L]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	s.changing.Lock()
	s.stops = make(map[string]func())
	s.start = func(l L) func() {
		linkCtx, stop := context.WithCancel(ctx)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			if err := l.Run(linkCtx); err != nil {
				select {
				case failed <- err:
				default:
				}
				cancel()
			}
		}()
		return func() { stop(); <-stopped }
	}
	for _, l := range s.All() {
		s.stops[l.Status().Name] = s.start(l)
	}
	s.changing.Unlock()
	<-ctx.Done()
	s.changing.Lock()
	defer s.changing.Unlock()
	s.start = nil
	for _, stop := range s.stops {
		stop()
	}
	clear(s.stops)
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// LinkList holds the links of a service that keeps no connections, with their tokens and what the last call over each
// showed. The zero value is an empty list. A LinkList is safe for concurrent use.
type LinkList struct {
	mu     sync.Mutex
	links  []Link // replaced, never changed
	tokens map[string]client.Credential
	states map[string]LinkStatus
}

// Put adds a link, or replaces the one with the same name.
func (s *LinkList) Put(l Link, token client.Credential) {
	s.Remove(l.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokens == nil {
		s.tokens, s.states = make(map[string]client.Credential), make(map[string]LinkStatus)
	}
	s.links, s.tokens[l.Name] = append(slices.Clip(s.links), l), token
	s.states[l.Name] = LinkStatus{Name: l.Name, Kind: l.Kind, To: l.URL, State: LinkConnecting}
}

// Remove removes a link.
func (s *LinkList) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = slices.DeleteFunc(slices.Clone(s.links), func(l Link) bool { return l.Name == name })
	delete(s.tokens, name)
	delete(s.states, name)
}

// All returns the links in the order in which they were added.
func (s *LinkList) All() []Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.links
}

// Find returns the link with a name, and its token.
func (s *LinkList) Find(name string) (l Link, token client.Credential, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.links, func(l Link) bool { return l.Name == name }); i >= 0 {
		return s.links[i], s.tokens[name], true
	}
	return l, "", false
}

// States returns the state of each link.
func (s *LinkList) States() []LinkStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []LinkStatus{}
	for _, l := range s.links {
		out = append(out, s.states[l.Name])
	}
	return out
}

// State returns the state of a link; the zero value means that there is no such link.
func (s *LinkList) State(name string) LinkStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[name]
}

// Record sets the state of a link, and returns the one before. See [LinkStatus.Set].
func (s *LinkList) Record(name string, state LinkState, fault string) (before LinkState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if status, ok := s.states[name]; ok {
		before = status.State
		if state == LinkUp { // the agent at the URL of the link
			status.Peers = 1
		}
		status.Set(state, fault)
		s.states[name] = status
	}
	return before
}
