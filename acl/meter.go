package acl

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store"
)

// maxMeterKeys bounds the senders and the conversations with a bucket that is not full. Under the default total it
// is never reached.
const maxMeterKeys = 1 << 16

// Rates are the message limits of AM-41, per hour. 0 switches a limit off.
type Rates struct {
	NewConversations int `yaml:"new_conversations"` // of one sender
	Conversation     int `yaml:"conversation"`      // messages within one conversation
	Total            int `yaml:"total"`             // messages of all senders
}

// DefaultRates returns the limits of the specification.
func DefaultRates() Rates { return Rates{NewConversations: 10, Conversation: 60, Total: 100} }

// Charge is one accepted message, as the limits see it.
type Charge struct {
	Sender string // principal
	Conv   store.ConvKey
	New    bool // it opens its conversation
	Known  bool // allow-listed, approved, or written to first by our owner
}

// Meter holds senders to [Rates]. It is line 12 of the receive table. It is safe for concurrent use.
type Meter struct {
	exempt map[string]struct{}

	mu      sync.Mutex // makes one charge of several buckets
	buckets map[string]*rate.Buckets
}

// The buckets of a meter, by their name in a snapshot.
const (
	bucketSender    = "sender"
	bucketConv      = "conversation"
	bucketTotal     = "total"
	bucketStrangers = "strangers"
)

// NewMeter returns a meter with full buckets. The exempt principals are never charged (AM-44), nor is anybody behind an
// exempt link.
func NewMeter(r Rates, exempt ...string) *Meter {
	perHour := func(n, keys int) *rate.Buckets {
		if n <= 0 {
			return nil
		}
		return rate.NewBuckets(rate.PerHour(n), n, keys)
	}
	strangers := r.Total / 2
	if r.Total == 1 {
		strangers = 1 // half of one: or no stranger could ever ask to be approved
	}
	return &Meter{
		exempt: set(exempt),
		buckets: map[string]*rate.Buckets{
			bucketSender:    perHour(r.NewConversations, maxMeterKeys),
			bucketConv:      perHour(r.Conversation, maxMeterKeys),
			bucketTotal:     perHour(r.Total, 1),
			bucketStrangers: perHour(strangers, 1), // AM-42
		},
	}
}

// Charge takes one token from every bucket that the message touches, or none where one of them is empty; then
// wait says when to come back (AM-41).
func (m *Meter) Charge(c Charge, now time.Time) (wait time.Duration, ok bool) {
	link, _, _ := strings.Cut(c.Sender, "/")
	for _, who := range []string{c.Sender, link} {
		if _, free := m.exempt[who]; free {
			return 0, true
		}
	}
	type draw struct{ bucket, key string }
	draws := []draw{{bucketConv, c.Conv.Peer + "\x00" + c.Conv.ID}, {bucketTotal, ""}}
	if c.New {
		draws = append(draws, draw{bucketSender, c.Sender})
	}
	if !c.Known {
		draws = append(draws, draw{bucketStrangers, ""})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range draws {
		wait = max(wait, m.buckets[d.bucket].Peek(d.key, now))
	}
	if wait > 0 {
		return wait, false
	}
	for _, d := range draws {
		m.buckets[d.bucket].Take(d.key, now)
	}
	return 0, true
}

// MeterLimits lists the names of a meter's limits.
func MeterLimits() []string {
	return []string{bucketSender, bucketConv, bucketTotal, bucketStrangers}
}

// Refused returns how many messages the limit of this name, one of [MeterLimits], refused. Several may refuse the same one.
func (m *Meter) Refused(limit string) uint64 { return m.buckets[limit].Refused() }

// Snapshot returns what a restart must remember (AM-44).
func (m *Meter) Snapshot(now time.Time) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[string]json.RawMessage, len(m.buckets))
	for name, b := range m.buckets {
		all[name] = b.Snapshot(now)
	}
	return encode(all)
}

// Restore fills the buckets from a snapshot. It is meant for a new meter; limits may have changed since.
func (m *Meter) Restore(data []byte, now time.Time) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("read rate limits: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, b := range m.buckets {
		if len(all[name]) == 0 {
			continue
		}
		if err := b.Restore(all[name], now); err != nil {
			return fmt.Errorf("read rate limits of %s: %w", name, err)
		}
	}
	return nil
}
