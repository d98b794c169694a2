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
	Width int    `json:"width"` // number of shares of a pool that the source may draw: 1, 2, 4 or 8
}

// AddrSources returns the sources of an address: an IPv4 address, its /24 and its /16, or the /64, /56, /48 and /32 of an
// IPv6 address. Each wider network has twice the share, except that the widest has more than there is: all tenants of a
// provider are in it, so it matters only for the last places of a [Pool]. [Unknown] and the zero address have no sources.
func AddrSources(addr netip.Addr) []Source {
	if !isSource(addr) {
		return nil
	}
	networks := Networks(addr)
	sources := []Source{{textOf(networks[0]), 1}}
	for _, network := range networks[1:] {
		sources = append(sources, Source{textOf(network), 2 * sources[len(sources)-1].Width})
	}
	sources[len(sources)-1].Width = 8
	return sources
}

// Pool is a token bucket that all strangers share fairly (AM-42, AM-97). While more than a fifth of the tokens are left,
// every draw succeeds. Below that, each source of a draw must have a token left in its own shares: a share is a fifth of
// the pool, a source has [Source.Width] shares, and shares refill in the time in which an empty pool fills. Two fifths more,
// the last places, are for draws whose sources drew nothing in that time. A draw without sources is charged to the caller's
// id instead, and gets none of the last places. A Pool is safe for concurrent use. A
// nil *Pool is a limit that is switched off.
type Pool struct {
	n, extra int // sizes in tokens: of what all share, and of the last places
	refused  atomic.Uint64

	mu     sync.Mutex       // makes one draw from several buckets atomic
	all    *Buckets         // the pool itself, as one bucket
	shares map[int]*Buckets // a bucket for each source, by width; by 0, one that is full while a source drew nothing
}

const fairParts = 5 // a share is the size of the pool divided by fairParts

// NewPool returns a full pool of n tokens that refills by limit.
func NewPool(limit Limit, n int) *Pool {
	// One source may leave only a fifth, so without the last places a few networks, one after the other, would empty the
	// pool. Of 50 tokens and 20 last places, 16 networks leave 6.
	extra := n * 2 / 5
	p := &Pool{n: n, extra: extra, all: NewBuckets(limit, n+extra, 1), shares: make(map[int]*Buckets)}
	share := p.share()
	for _, width := range []int{1, 2, 4, 8} {
		// At most 16n buckets, because far fewer draws succeed in the time in which the pool refills.
		refill := Limit(float64(limit) * float64(share*width) / float64(n))
		p.shares[width] = NewBuckets(refill, share*width, 16*n)
	}
	p.shares[0] = NewBuckets(limit/Limit(n), 1, 16*n)
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
	fair, last := p.waitFor(p.extra, now), p.waitFor(0, now)
	if len(sources) == 0 {
		last = p.all.maxDebt
	}
	sources = sourcesOrID(sources, id)
	for _, s := range sources {
		fair = max(fair, p.shares[s.Width].waitIfEmpty(s.Key, now))
		last = max(last, p.shares[0].waitIfEmpty(s.Key, now))
	}
	wait = min(p.waitFor(p.extra+min(p.n-1, p.share()), now), fair, last)
	if wait > 0 {
		p.refused.Add(1)
		return wait, false
	}
	if take {
		p.all.charge("", now)
		for _, s := range sources {
			p.shares[s.Width].charge(s.Key, now)
			p.shares[0].charge(s.Key, now)
		}
	}
	return 0, true
}

func (p *Pool) share() int { return max(1, p.n/fairParts) }

// Return gives back a token that Take took for the same sources and id. They still count as sources that drew something.
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
