package rate

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Source is where a draw comes from: an address, the network around it, a credential, a host.
type Source struct {
	Key   string `json:"key"`
	Width int    `json:"width"` // what it may draw, in shares: 1, 2 or 4
}

// AddrSources returns the sources of an address, none for [Unknown] or the zero address: an IPv4 address and its /24, or
// the /64, /56 and /48 of an IPv6 address. A wider network has double the share of the next narrower one.
func AddrSources(addr netip.Addr) []Source {
	if !isSource(addr) {
		return nil
	}
	keys := networks(addr)
	sources := []Source{{keys[0], 1}}
	for _, key := range wider(keys) {
		sources = append(sources, Source{key, 2 * sources[len(sources)-1].Width})
	}
	return sources
}

// Pool is a token bucket that all strangers share fairly (AM-42). While more than half of it is left anybody draws.
// Below that, a draw is refused if one of its sources drew its share, a fifth of the pool, within the time in which the
// pool fills. A draw without sources is counted for its id, and stops at a quarter of the pool. Pool is safe for
// concurrent use. A nil *Pool is a limit that is switched off.
type Pool struct {
	n       int
	refused atomic.Uint64

	mu     sync.Mutex       // makes one draw of several buckets
	all    *Buckets         // under one key
	shares map[int]*Buckets // by width
}

// fairParts is how many shares a pool has.
const fairParts = 5

// NewPool returns a full pool of n tokens that refills by limit.
func NewPool(limit Limit, n int) *Pool {
	p := &Pool{n: n, all: NewBuckets(limit, n, 1), shares: make(map[int]*Buckets)}
	share := max(1, n/fairParts)
	for _, width := range []int{1, 2, 4} {
		// A source is full again when the pool is, so few buckets are not full. The bound is never reached.
		refill := Limit(float64(limit) * float64(share*width) / float64(n))
		p.shares[width] = NewBuckets(refill, share*width, 16*n)
	}
	return p
}

// Peek returns how long a draw must wait: 0 if it need not.
func (p *Pool) Peek(sources []Source, id string, now time.Time) time.Duration {
	wait, _ := p.draw(sources, id, now, false)
	return wait
}

// Take takes a token, or returns how long to wait for one. The id is counted if there are no sources.
func (p *Pool) Take(sources []Source, id string, now time.Time) (wait time.Duration, ok bool) {
	return p.draw(sources, id, now, true)
}

func (p *Pool) draw(sources []Source, id string, now time.Time, take bool) (wait time.Duration, ok bool) {
	if p == nil {
		return 0, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	reserve := 0 // tokens that this draw must leave to others
	if len(sources) == 0 {
		reserve = p.n / 4
	}
	sources = counted(sources, id)
	wait = p.waitFor(p.n/2, now) // for the half that is open to all
	if wait > 0 {
		contested := p.waitFor(reserve, now)
		for _, s := range sources {
			drawn, _ := p.shares[s.Width].isEmpty(s.Key, now)
			contested = max(contested, drawn)
		}
		wait = min(wait, contested)
	}
	if wait > 0 {
		p.refused.Add(1)
		return wait, false
	}
	if take {
		p.all.add("", now)
		for _, s := range sources {
			p.shares[s.Width].add(s.Key, now)
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
	for _, s := range counted(sources, id) {
		p.shares[s.Width].Return(s.Key, now)
	}
}

// counted returns what a draw is counted for: its sources or, if it has none, its id.
func counted(sources []Source, id string) []Source {
	if len(sources) == 0 {
		return []Source{{"id:" + id, 1}}
	}
	return sources
}

// waitFor returns how long it takes until more than left tokens are there.
func (p *Pool) waitFor(left int, now time.Time) time.Duration {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	now = p.all.time(now)
	return max(0, p.all.debt("", now)+time.Duration(left+1)*p.all.interval-p.all.whole)
}

// Refused returns how many draws were told to wait.
func (p *Pool) Refused() uint64 {
	if p == nil {
		return 0
	}
	return p.refused.Load()
}

// poolSnapshot is what a restart must remember of a pool.
type poolSnapshot struct {
	All    json.RawMessage         `json:"all,omitempty"`
	Shares map[int]json.RawMessage `json:"shares,omitempty"`
}

// Snapshot returns what was drawn, for [Pool.Restore].
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
	data, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("rate: encode snapshot: %v", err)) // two levels of plain JSON
	}
	return data
}

// Restore adds what a snapshot says was drawn. It may come from a pool of another size.
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
