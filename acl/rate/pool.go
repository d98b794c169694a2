package rate

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Source is the origin of a draw: an address, the network around it, a credential, a host.
type Source struct {
	Key   string `json:"key"`
	Width int    `json:"width"` // number of shares of a pool that the source may draw: 1, 2 or 4
}

// AddrSources returns the sources of an address: an IPv4 address and its /24, or the /64, /56 and /48 of an IPv6
// address. Each wider network has twice the share. [Unknown] and the zero address have no sources.
func AddrSources(addr netip.Addr) []Source {
	if !isSource(addr) {
		return nil
	}
	networks := Networks(addr)
	sources := []Source{{textOf(networks[0]), 1}}
	for _, network := range wider(networks) {
		sources = append(sources, Source{textOf(network), 2 * sources[len(sources)-1].Width})
	}
	return sources
}

// Pool is a token bucket that all strangers share fairly (AM-42). While more than half of the tokens are left, every
// draw succeeds. Below that, each source of a draw must have a token left in its own shares: a share is a fifth of the
// pool, a source has [Source.Width] shares, and shares refill in the time in which an empty pool fills. A draw without
// sources is charged to the caller's id instead, and must leave a quarter of the pool. A Pool is safe for concurrent
// use. A nil *Pool is a limit that is switched off.
type Pool struct {
	n       int // size in tokens
	refused atomic.Uint64

	mu     sync.Mutex       // makes one draw from several buckets atomic
	all    *Buckets         // the pool itself, as one bucket
	shares map[int]*Buckets // a bucket for each source, by width
}

const fairParts = 5 // a share is the size of the pool divided by fairParts

// NewPool returns a full pool of n tokens that refills by limit.
func NewPool(limit Limit, n int) *Pool {
	p := &Pool{n: n, all: NewBuckets(limit, n, 1), shares: make(map[int]*Buckets)}
	share := max(1, n/fairParts)
	for _, width := range []int{1, 2, 4} {
		// At most 16n buckets, because far fewer draws succeed in the time in which the pool refills.
		refill := Limit(float64(limit) * float64(share*width) / float64(n))
		p.shares[width] = NewBuckets(refill, share*width, 16*n)
	}
	return p
}

// Peek returns how long a draw must wait. It takes no token.
func (p *Pool) Peek(sources []Source, id string, now time.Time) time.Duration {
	wait, _ := p.draw(sources, id, now, false)
	return wait
}

// Take takes a token, or returns how long to wait for one. Without sources, the draw is charged to id.
func (p *Pool) Take(sources []Source, id string, now time.Time) (wait time.Duration, ok bool) {
	return p.draw(sources, id, now, true)
}

// draw returns how long a draw must wait. If it need not wait and take is set, draw takes the token.
func (p *Pool) draw(sources []Source, id string, now time.Time, take bool) (wait time.Duration, ok bool) {
	if p == nil {
		return 0, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	reserve := 0 // tokens that this draw must leave in the pool
	if len(sources) == 0 {
		reserve = p.n / 4
	}
	sources = sourcesOrID(sources, id)
	wait = p.waitFor(p.n/2, now) // until the pool is more than half full, when every draw succeeds
	if wait > 0 {
		fairWait := p.waitFor(reserve, now) // until the pool and the shares of all sources permit the draw
		for _, s := range sources {
			shareWait := p.shares[s.Width].waitIfEmpty(s.Key, now)
			fairWait = max(fairWait, shareWait)
		}
		wait = min(wait, fairWait)
	}
	if wait > 0 {
		p.refused.Add(1)
		return wait, false
	}
	if take {
		p.all.charge("", now)
		for _, s := range sources {
			p.shares[s.Width].charge(s.Key, now)
		}
	}
	return 0, true
}

// Return gives back a token that Take took for the same sources and id.
func (p *Pool) Return(sources []Source, id string, now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.Return("", now)
	for _, s := range sourcesOrID(sources, id) {
		p.shares[s.Width].Return(s.Key, now)
	}
}

// sourcesOrID returns sources, or a source made from id if sources is empty.
func sourcesOrID(sources []Source, id string) []Source {
	if len(sources) == 0 {
		return []Source{{"id:" + id, 1}}
	}
	return sources
}

// waitFor returns how long it takes until a draw leaves reserve tokens in the pool.
func (p *Pool) waitFor(reserve int, now time.Time) time.Duration {
	now = p.all.lock(now)
	defer p.all.mu.Unlock()
	return max(0, p.all.debt("", now)+time.Duration(reserve+1)*p.all.interval-p.all.maxDebt)
}

// Refusals returns how often Peek and Take made a caller wait.
func (p *Pool) Refusals() uint64 {
	if p == nil {
		return 0
	}
	return p.refused.Load()
}

type poolSnapshot struct {
	All    json.RawMessage         `json:"all,omitempty"`
	Shares map[int]json.RawMessage `json:"shares,omitempty"`
}

// Snapshot encodes the tokens that were drawn and not refilled yet, for [Pool.Restore].
func (p *Pool) Snapshot(now time.Time) []byte {
	var s poolSnapshot
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		s = poolSnapshot{p.all.Snapshot(now), make(map[int]json.RawMessage)}
		for width, b := range p.shares {
			s.Shares[width] = b.Snapshot(now)
		}
	}
	return wire.MustMarshal(s)
}

// Restore adds the draws of a snapshot, even from a pool of another size.
func (p *Pool) Restore(data []byte, now time.Time) error {
	var s poolSnapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("decode pool: %w", err)
	}
	if p == nil || len(s.All) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.all.Restore(s.All, now); err != nil {
		return err
	}
	for width, b := range p.shares {
		if len(s.Shares[width]) == 0 {
			continue
		}
		if err := b.Restore(s.Shares[width], now); err != nil {
			return err
		}
	}
	return nil
}
