package acl

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// maxMeterKeys bounds the senders and conversations whose bucket is not full. The default Total permits far fewer.
const maxMeterKeys = 1 << 16

// Rates are the message limits of AM-41, per hour. 0 disables a limit.
type Rates struct {
	NewConversations int // new conversations of one sender
	Conversation     int // messages within one conversation
	Total            int // messages of all senders
	TokenContexts    int // new conversations of one sender with a token from the owner
}

// DefaultRates returns the limits of the specification.
func DefaultRates() Rates {
	return Rates{NewConversations: 10, Conversation: 60, Total: 100, TokenContexts: 100}
}

// Charge describes a message that is charged to the limits.
type Charge struct {
	Sender  string // principal; for a native message, the id on the sender's card
	Conv    store.ConvKey
	New     bool          // the message opens its conversation
	Token   bool          // the owner gave the sender a token, whose limit replaces those of senders and of all together
	Known   bool          // the sender is allow-listed, approved, or was written to first by our owner
	Sources []rate.Source // the address of a stranger, the networks around it, and the like; empty if unknown
}

// Meter applies [Rates] to senders, as line 12 of the receive table in docs/protocol.md. It is safe for concurrent use.
type Meter struct {
	exempt map[string]struct{}

	mu        sync.Mutex // makes one charge of several buckets atomic
	buckets   map[string]*rate.Buckets
	strangers *rate.Pool // the half of Total that strangers share (AM-42)
}

// The limits of a meter, by their names in a snapshot.
const (
	limitSender    = "sender"
	limitConv      = "conversation"
	limitTotal     = "total"
	limitStrangers = "strangers"
	limitToken     = "token"
)

// NewMeter returns a meter with full buckets. It never charges the exempt principals (AM-44). If exempt has the name of a
// link to a foreign network, that means all peers on the link.
func NewMeter(r Rates, exempt ...string) *Meter {
	perHour := func(n, keys int) *rate.Buckets {
		if n <= 0 {
			return nil
		}
		return rate.NewBuckets(rate.PerHour(n), n, keys)
	}
	m := &Meter{
		exempt: toSet(exempt),
		buckets: map[string]*rate.Buckets{
			limitSender: perHour(r.NewConversations, maxMeterKeys),
			limitConv:   perHour(r.Conversation, maxMeterKeys),
			limitTotal:  perHour(r.Total, 1),
			limitToken:  perHour(r.TokenContexts, maxMeterKeys),
		},
	}
	if r.Total > 0 {
		n := max(1, r.Total/2) // at least one token; otherwise no stranger could ever ask for approval
		m.strangers = rate.NewPool(rate.PerHour(n), n)
	}
	return m
}

// Charge takes one token from every bucket that pays for the message. If one of them is empty, Charge takes nothing, ok
// is false, and the sender may try again after wait (AM-41).
func (m *Meter) Charge(c Charge, now time.Time) (wait time.Duration, ok bool) {
	if m.isExempt(c.Sender) {
		return 0, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := c.keys()
	for limit, key := range keys {
		wait = max(wait, m.buckets[limit].Peek(key, now))
	}
	if c.isStranger() {
		wait = max(wait, m.strangers.Peek(c.Sources, c.Sender, now))
	}
	if wait > 0 {
		return wait, false
	}
	for limit, key := range keys {
		m.buckets[limit].Take(key, now)
	}
	if c.isStranger() {
		m.strangers.Take(c.Sources, c.Sender, now)
	}
	return 0, true
}

// Return undoes a Charge for a message that was then refused because too many questions wait for the owner. Such a
// message must cost nothing (AM-41).
func (m *Meter) Return(c Charge, now time.Time) {
	if m.isExempt(c.Sender) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for limit, key := range c.keys() {
		m.buckets[limit].Return(key, now)
	}
	if c.isStranger() {
		m.strangers.Return(c.Sources, c.Sender, now)
	}
}

func (c Charge) isStranger() bool { return !c.Known && !c.Token }

// keys returns, for each limit, the key of the bucket that pays for the message.
func (c Charge) keys() map[string]string {
	keys := map[string]string{limitConv: c.Conv.Peer + "\x00" + c.Conv.ID}
	opener := limitSender
	if c.Token {
		opener = limitToken
	} else {
		keys[limitTotal] = ""
	}
	if c.New {
		keys[opener] = c.Sender
	}
	return keys
}

// isExempt reports whether the sender is exempt, or the link that comes before the first slash of its name.
func (m *Meter) isExempt(sender string) bool {
	link, _, _ := strings.Cut(sender, "/")
	_, exempt := m.exempt[sender]
	_, linkExempt := m.exempt[link]
	return exempt || linkExempt
}

// MeterLimits returns the names of a meter's limits.
func MeterLimits() []string {
	return []string{limitSender, limitConv, limitTotal, limitStrangers, limitToken}
}

// Refusals returns how many messages a limit, one of [MeterLimits], refused. Several limits may refuse the same
// message.
func (m *Meter) Refusals(limit string) uint64 {
	if limit == limitStrangers {
		return m.strangers.Refusals()
	}
	return m.buckets[limit].Refusals()
}

// Snapshot returns the state that must survive a restart (AM-44).
func (m *Meter) Snapshot(now time.Time) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]json.RawMessage{limitStrangers: m.strangers.Snapshot(now)}
	for name, b := range m.buckets {
		all[name] = b.Snapshot(now)
	}
	return wire.MustMarshal(all)
}

// Restore loads a snapshot into a new meter, which may have other limits.
func (m *Meter) Restore(data []byte, now time.Time) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("read rate limits: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if data := all[limitStrangers]; len(data) > 0 {
		if err := m.strangers.Restore(data, now); err != nil {
			return fmt.Errorf("read rate limits of %s: %w", limitStrangers, err)
		}
	}
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
