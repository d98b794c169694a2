package operator

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxFollowers = 100 // beyond these, a new reader displaces the reader that has been silent longest
	maxAgent     = 200 // characters of a User-Agent
)

// Followers are the readers of the change feed since the process started. The zero value is ready, and safe for
// concurrent use.
type Followers struct {
	mu      sync.Mutex
	readers map[netip.Prefix]Follower
}

// Follower is a reader of the change feed. Requests from one network count as one reader.
type Follower struct {
	From        netip.Prefix // invalid if the address is unknown
	Agent       string       // the User-Agent of the last request: untrusted
	First, Last time.Time
	Reads       int
}

// Add counts a request for the feed.
func (f *Followers) Add(client netip.Addr, agent string) {
	now := time.Now()
	if client == rate.Unknown {
		client = netip.Addr{}
	}
	from := rate.Networks(client)[0] // all readers without an address share the zero network
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers == nil {
		f.readers = make(map[netip.Prefix]Follower)
	}
	r, known := f.readers[from]
	if !known {
		if len(f.readers) == maxFollowers {
			delete(f.readers, f.listByRead()[maxFollowers-1].From)
		}
		r = Follower{From: from, First: now}
	}
	r.Agent, r.Last, r.Reads = wire.OneLine(agent, maxAgent), now, r.Reads+1
	f.readers[from] = r
}

// List returns the readers, the latest first.
func (f *Followers) List() []Follower {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listByRead()
}

func (f *Followers) listByRead() []Follower {
	return slices.SortedFunc(maps.Values(f.readers), func(a, b Follower) int { return b.Last.Compare(a.Last) })
}
