package bridge

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
)

// RunningLink is a link in a [LinkSet].
type RunningLink interface {
	Status() LinkStatus
	// Test connects as if for the first time, and returns the error that prevents the link from working, or nil.
	Test(ctx context.Context) error
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

// Test tests the link with a name; see [RunningLink].
func (s *LinkSet[L]) Test(ctx context.Context, name string) error {
	l, ok := s.Find(name)
	if !ok {
		return fmt.Errorf("there is no link %s", name)
	}
	return l.Test(ctx)
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

// CalledLink is a link of a service that keeps no connections, with its token and what the last call over it showed. It
// is safe for concurrent use.
type CalledLink struct {
	Link
	Token client.Credential
	test  func(ctx context.Context, l *CalledLink) error // also records the result

	mu     sync.Mutex
	status LinkStatus
}

// NewCalledLink returns a link that test tests. The function test records what it finds.
func NewCalledLink(l Link, token client.Credential, test func(ctx context.Context, l *CalledLink) error) *CalledLink {
	return &CalledLink{Link: l, Token: token, test: test, status: LinkStatus{Name: l.Name, Kind: l.Kind, To: l.URL, State: LinkConnecting}}
}

// Status returns the state of the link.
func (l *CalledLink) Status() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Test implements [RunningLink].
func (l *CalledLink) Test(ctx context.Context) error { return l.test(ctx, l) }

// Run tests the link now and every ten minutes, unless it is down, so that the owner sees a link that does not answer.
func (l *CalledLink) Run(ctx context.Context) error {
	const every, patience = 10 * time.Minute, 30 * time.Second
	for tick := time.Tick(every); ctx.Err() == nil; {
		if l.Status().State != LinkDown {
			testing, cancel := context.WithTimeout(ctx, patience)
			_ = l.Test(testing) // records the error
			cancel()
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
	return nil
}

// Record sets the state of the link after a call that began then, and returns the one before. See [LinkStatus.Set]. A
// link that went down during the call stays down, because the call does not show that what took it down has changed.
func (l *CalledLink) Record(began time.Time, state LinkState, fault string) (before LinkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before = l.status.State; before == LinkDown && began.Before(l.status.Since) {
		return before
	}
	if state == LinkUp { // the agent at the URL of the link
		l.status.Peers = 1
	}
	l.status.Set(state, fault)
	return before
}
