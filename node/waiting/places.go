package waiting

import (
	"errors"
	"sync"
)

// ErrNoPlace means that all places are taken, or all that one key or source may have.
var ErrNoPlace = errors.New("no place is free")

// Places bounds what happens at the same time: in total, and for each key. It is safe for concurrent use.
type Places struct {
	max, perKey int

	mu    sync.Mutex
	total int
	taken map[string]int // by key
}

// NewPlaces returns places that are all free: max of them in all, of which one key may take perKey.
func NewPlaces(max, perKey int) *Places {
	return &Places{max: max, perKey: perKey, taken: make(map[string]int)}
}

// Enter takes a place for key. ok is false if no place is free; otherwise the caller must call leave once.
func (p *Places) Enter(key string) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= p.max || p.taken[key] >= p.perKey {
		return nil, false
	}
	p.total++
	p.taken[key]++
	return func() { p.leave(key) }, true
}

func (p *Places) leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	if p.taken[key]--; p.taken[key] == 0 {
		delete(p.taken, key)
	}
}
