package credential

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store"
)

// maxCounted is the largest burst of a [SharedLimit], because the store counts no further.
const maxCounted = 10_000

// SharedLimit limits the registrations of one address per hour, across all processes on a store. Each registration
// stores a record that expires when its address regains the token; together, the records are a token bucket that starts
// full. A refused registration stores nothing. A nil *SharedLimit is a limit that is switched off. It is safe for
// concurrent use.
type SharedLimit struct {
	records store.Records
	ns      string
	perHour int
	refused atomic.Uint64
}

// NewSharedLimit returns a limit of perHour registrations per address, with its records in ns. It returns nil if
// perHour is not positive.
func NewSharedLimit(records store.Records, ns string, perHour int) *SharedLimit {
	if perHour <= 0 {
		return nil
	}
	return &SharedLimit{records: records, ns: ns, perHour: perHour}
}

// Take returns the changes that charge a registration to the address, or how long the address must wait. Commit the
// changes with the registration. They fail with [store.ErrQuota] if other processes used up the bucket meanwhile.
func (l *SharedLimit) Take(ctx context.Context, addr netip.Addr, now time.Time) (changes []store.Change, wait time.Duration, err error) {
	if l == nil {
		return nil, 0, nil
	}
	for _, share := range rate.Shares(addr) {
		burst := l.perHour * share.Factor
		interval := time.Hour / time.Duration(burst)
		// full is when an empty bucket would be full. Ignore records with a later end: a clock ran fast when they were
		// stored.
		full := now.Add(time.Duration(burst) * interval)
		page, err := l.records.List(ctx, l.ns, share.Key, endKey(full), 1, now)
		if err != nil {
			return nil, 0, fmt.Errorf("count registrations: %w", err)
		}
		end := now
		if len(page.Records) > 0 { // the record with the latest end
			end = page.Records[0].Expires
		}
		end = end.Add(interval)
		wait = max(wait, end.Sub(full))
		record := store.Record{NS: l.ns, Key: endKey(end) + rand.Text(), Terms: []string{share.Key}, Expires: end}
		changes = append(changes, store.Change{Record: record, Max: min(burst, maxCounted)})
	}
	if wait > 0 {
		l.refused.Add(1)
		return nil, wait, nil
	}
	return changes, 0, nil
}

// endKey returns the beginning of the keys of the records that expire at end. Later expiries sort first.
func endKey(end time.Time) string { return fmt.Sprintf("%016x", math.MaxInt64-end.UnixNano()) }

// Refusals returns how often an address had to wait.
func (l *SharedLimit) Refusals() uint64 {
	if l == nil {
		return 0
	}
	return l.refused.Load()
}
