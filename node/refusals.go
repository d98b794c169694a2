package node

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// refusal is a refused message, with its row in the error table.
type refusal struct {
	owner.Refusal
	row string
}

// refusals keeps the newest refusals in memory. Refusals of the same sender for the same reason are merged if the
// sender is proven. For unproven senders, all refusals for the same reason are merged, so that forgers cannot push out
// the refusals of proven senders.
type refusals struct {
	mu   sync.Mutex
	list []refusal // oldest first
	news waiting.Signal
}

const maxRefusals = 64

func (r *refusals) add(in bridge.Inbound, why *wire.Error, now time.Time) {
	entry := refusal{row: why.Row(), Refusal: owner.Refusal{
		At: now, Times: 1, Code: why.Code, Status: why.Status, Answer: why.Message,
		From: wire.OneLine(in.Principal, 128), Proven: in.Verified != "" && in.Verified != bridge.VerifiedNone, Intent: wire.Intent(wire.OneLine(string(in.Intent), 128)),
	}}
	if cause := errors.Unwrap(why); cause != nil {
		entry.Why = wire.OneLine(cause.Error(), 300)
	}
	r.mu.Lock()
	at := slices.IndexFunc(r.list, func(old refusal) bool {
		return old.row == entry.row && old.Proven == entry.Proven && (!entry.Proven || old.From == entry.From)
	})
	switch {
	case at >= 0:
		entry.Times += r.list[at].Times
		r.list = slices.Delete(r.list, at, at+1)
	case len(r.list) >= maxRefusals:
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, entry)
	r.mu.Unlock()
	r.news.Broadcast()
}

func (r *refusals) newest() []owner.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]owner.Refusal, 0, len(r.list))
	for _, entry := range slices.Backward(r.list) {
		list = append(list, entry.Refusal)
	}
	return list
}
