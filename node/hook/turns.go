package hook

import (
	"context"
	"slices"
	"sync"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Source is where a message comes from. Its runs must not hold up those of other sources.
type Source struct {
	Key      string
	Stranger bool // the owner does not know the sender
}

// Turn is what a run waits for: a place among the runs of its duty, after those of other sources.
type Turn struct {
	Duty   string // "" for the programs of the owner
	Source Source
}

// turns bounds the runs of one duty. The sources that wait take turns.
type turns struct {
	mu      sync.Mutex
	running places
	queued  places // runs that run or wait for their turn
	waiting []wait // of each source in the order of arrival; the source whose turn it is comes first
}

// wait is a run that waits for its turn.
type wait struct {
	source Source
	begin  chan struct{} // closed when the run may begin
}

// places counts what the sources hold.
type places struct {
	max, taken int
	bySource   map[Source]int
}

// has reports whether a source may take a place. A run cannot be interrupted, so a source never gets more than half of
// the places, even if nobody else waits. The last quarter is left to known sources that hold no place.
func (p *places) has(s Source) bool {
	reserve := p.max / 4
	most, held := p.max, p.bySource[s]
	if s.Stranger {
		most -= reserve
	}
	return p.taken < p.max && held < max(1, most/2) && (!s.Stranger && held == 0 || p.taken < p.max-reserve)
}

func (p *places) take(s Source) {
	p.taken++
	p.bySource[s]++
}

func (p *places) free(s Source) {
	p.taken--
	if p.bySource[s]--; p.bySource[s] == 0 {
		delete(p.bySource, s)
	}
}

// reserve takes room for a run before its message is accepted, or returns wire.ErrUnavailable because of
// [waiting.ErrNoPlace].
func (t *turns) reserve(s Source) (release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.queued.has(s) {
		return nil, wire.ErrUnavailable.Because(waiting.ErrNoPlace)
	}
	t.queued.take(s)
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.queued.free(s)
	}), nil
}

// await waits for the turn of a run. The caller must call end.
func (t *turns) await(ctx context.Context, s Source) (end func(), err error) {
	if ctx.Err() != nil { // the choice below would be by chance if a place is free
		return nil, ctx.Err()
	}
	w := wait{s, make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.begin()
	t.mu.Unlock()
	end = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.running.free(s)
		others := slices.DeleteFunc(slices.Clone(t.waiting), func(w wait) bool { return w.source == s })
		own := slices.DeleteFunc(t.waiting, func(w wait) bool { return w.source != s })
		t.waiting = append(others, own...) // the source has had its turn
		t.begin()
	}
	select {
	case <-w.begin:
		return end, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, w)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // the turn came at the same time
		end()
	}
	return nil, ctx.Err()
}

// begin begins the runs that may, first those of the sources that hold the fewest places, so that a new source waits for
// the end of one run at most.
func (t *turns) begin() {
	for {
		next := -1
		for i, w := range t.waiting {
			fewer := next < 0 || t.running.bySource[w.source] < t.running.bySource[t.waiting[next].source]
			if fewer && t.running.has(w.source) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := t.waiting[next]
		t.running.take(w.source)
		close(w.begin)
		t.waiting = slices.Delete(t.waiting, next, next+1)
	}
}
