package node

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Refusal is a message that was not taken in, and why. The same refusal of the same sender is counted, not repeated.
type Refusal struct {
	At     time.Time
	Times  int
	Code   wire.Code
	Status int
	Told   string // to the sender
	Why    string // the cause, which only the owner sees
	// From is the sender. Proven says that a signature says so; without it From is
	// what the newest of the messages claims.
	From   string
	Proven bool
	Intent wire.Intent

	row string
}

// refusals keeps the newest refusals in memory. It is bounded: what forgers send is told apart by reason alone, so
// that they cannot push out what was refused to senders who proved who they are.
type refusals struct {
	mu   sync.Mutex
	list []Refusal // oldest first
	news signal
}

const maxRefusals = 64

func (r *refusals) add(in bridge.Inbound, refusal *wire.Error, now time.Time) {
	one := Refusal{
		At: now, Times: 1, Code: refusal.Code, Status: refusal.Status, Told: refusal.Message, row: refusal.Row(),
		From: wire.OneLine(in.Principal, 128), Proven: in.Verified != "" && in.Verified != bridge.VerifiedNone, Intent: wire.Intent(wire.OneLine(string(in.Intent), 128)),
	}
	if cause := errors.Unwrap(refusal); cause != nil {
		one.Why = wire.OneLine(cause.Error(), 300)
	}
	r.mu.Lock()
	at := slices.IndexFunc(r.list, func(old Refusal) bool {
		return old.row == one.row && old.Proven == one.Proven && (!one.Proven || old.From == one.From)
	})
	switch {
	case at >= 0:
		one.Times += r.list[at].Times
		r.list = slices.Delete(r.list, at, at+1)
	case len(r.list) >= maxRefusals:
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, one)
	r.mu.Unlock()
	r.news.give()
}

// Refusals returns what was refused since the process started, newest first.
func (n *Node) Refusals() []Refusal {
	n.refusals.mu.Lock()
	defer n.refusals.mu.Unlock()
	list := slices.Clone(n.refusals.list)
	slices.Reverse(list)
	return list
}
