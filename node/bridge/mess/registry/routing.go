package registry

import (
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Rules returns the routing rules as the owner set them. They order the executors that an exchange tells of a
// request. This exchange tells none, because executors look for requests themselves, so nothing uses the rules.
func (r *Executors) Rules() (wire.Value, error) {
	if err := r.cfg.Load(); err != nil {
		return wire.Value{}, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.rules, nil
}

// RulesChange returns the change that stores the routing rules.
func RulesChange(rules wire.Value) store.Change {
	return store.Change{Record: store.Record{NS: NSMeta, Key: "routing", Body: wire.MustMarshal(rules)}, IfRev: store.Any}
}

func (r *Executors) setRules(rules wire.Value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = rules
}

// HasNoCandidate reports whether nobody is left that could claim the thread (MESS-24): no executor, and no peer with an
// open offer. The requester does not count: it may claim its own thread, but it wants somebody else to do it.
func (r *Executors) HasNoCandidate(t *thread.Thread) bool {
	for id := range t.Peers {
		if t.HasOffer(id) {
			return false
		}
	}
	if len(t.Requires) == 0 {
		return !slices.ContainsFunc(r.accounts.List(), func(e *Executor) bool { return e.ID != t.Requester && e.canClaim(t) })
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	considered := r.byCap[t.Requires[0].ID]
	for _, n := range t.Requires { // the rarest capability leaves the fewest executors
		if list := r.byCap[n.ID]; len(list) < len(considered) {
			considered = list
		}
	}
	for _, e := range considered {
		if e.ID != t.Requester && e.canClaim(t) {
			return false
		}
	}
	return true
}
