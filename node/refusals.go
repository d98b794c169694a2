package node

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// refusal is a message that was not taken in, with its row in the table of errors.
type refusal struct {
	owner.Refusal
	row string
}

// refusals keeps the newest refusals in memory. It is bounded: what forgers send is told apart by reason alone, so
// that they cannot push out what was refused to senders who proved who they are.
type refusals struct {
	mu   sync.Mutex
	list []refusal // oldest first
	news signal
}

const maxRefusals = 64

func (r *refusals) add(in bridge.Inbound, why *wire.Error, now time.Time) {
	one := refusal{row: why.Row(), Refusal: owner.Refusal{
		At: now, Times: 1, Code: why.Code, Status: why.Status, Answer: why.Message,
		From: wire.OneLine(in.Principal, 128), Proven: in.Verified != "" && in.Verified != bridge.VerifiedNone, Intent: wire.Intent(wire.OneLine(string(in.Intent), 128)),
	}}
	if cause := errors.Unwrap(why); cause != nil {
		one.Why = wire.OneLine(cause.Error(), 300)
	}
	r.mu.Lock()
	at := slices.IndexFunc(r.list, func(old refusal) bool {
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

// newest returns what was refused since the process started, newest first.
func (r *refusals) newest() []owner.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]owner.Refusal, 0, len(r.list))
	for _, one := range slices.Backward(r.list) {
		list = append(list, one.Refusal)
	}
	return list
}
