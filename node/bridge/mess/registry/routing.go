package registry

import (
	"cmp"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// Offer is the offer of a thread to an executor. An executor without a notice may claim it too (MESS-43).
type Offer struct {
	ID     string
	Notify bool // gets a notice of the offer
}

// Route returns the executors other than the requester that may claim a thread, in the order of offers (MESS-41,
// MESS-42).
func (r *Executors) Route(t *thread.Thread, now time.Time) []Offer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	considered := r.all
	if t.Only != "" {
		considered = nil
		if c := r.byID[t.Only]; c != nil {
			considered = []*Candidate{c}
		}
	}
	for _, n := range t.Requires { // start with the rarest capability: it leaves the fewest executors
		if list := r.byCap[n.ID]; t.Only == "" && len(list) < len(considered) {
			considered = list
		}
	}
	rule := r.ruleFor(t)
	named := make(map[string]int, len(rule.Prefer))
	for i, id := range rule.Prefer {
		named[id] = i
	}
	chosen := make([]*Candidate, 0, len(considered))
	for _, c := range considered {
		if c.ID != t.Requester && c.canClaim(t) {
			chosen = append(chosen, c)
		}
	}
	switch {
	case len(named) > 0:
		rank := func(c *Candidate) int {
			if i, ok := named[c.ID]; ok {
				return i
			}
			return len(named)
		}
		slices.SortStableFunc(chosen, func(a, b *Candidate) int { return cmp.Compare(rank(a), rank(b)) })
	case rule.By == "lower_latency":
		slices.SortStableFunc(chosen, func(a, b *Candidate) int { return cmp.Compare(a.median, b.median) })
	case rule.By == "higher_precision":
		sortByLevel(chosen, t.Requires)
	}
	offers := make([]Offer, len(chosen))
	for i, c := range chosen {
		_, isNamed := named[c.ID]
		offers[i] = Offer{c.ID, c.isAvailable(now, isNamed) && c.wantsNotice(t, now)}
	}
	return offers
}

// sortByLevel sorts by the level that executors declare for needs, highest first.
func sortByLevel(list []*Candidate, needs []thread.Need) {
	levels := make(map[*Candidate]int, len(list))
	for _, c := range list {
		levels[c] = c.level(needs)
	}
	slices.SortStableFunc(list, func(a, b *Candidate) int { return cmp.Compare(levels[b], levels[a]) })
}

// ruleFor returns the first rule that matches, or else the default rule, or else an empty one.
func (r *Executors) ruleFor(t *thread.Thread) thread.Rule {
	fallback := thread.Rule{}
	for _, rule := range r.rules {
		if rule.Default {
			if fallback.Prefer == nil && fallback.By == "" {
				fallback = rule
			}
			continue
		}
		if rule.Matches(t) {
			return rule
		}
	}
	return fallback
}

// Rules returns the routing rules.
func (r *Executors) Rules() ([]thread.Rule, error) {
	if err := r.cfg.Load(); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.rules), nil
}

// RulesChange returns the change that stores the routing rules.
func RulesChange(rules []thread.Rule) store.Change {
	return store.Change{Record: store.Record{NS: NSMeta, Key: "routing", Body: thread.Encode(rules)}, IfRev: store.Any}
}

func (r *Executors) setRules(rules []thread.Rule) {
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
	r.mu.RLock()
	defer r.mu.RUnlock()
	return !slices.ContainsFunc(r.all, func(c *Candidate) bool { return c.ID != t.Requester && c.canClaim(t) })
}
