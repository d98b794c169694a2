package exchange

import (
	"cmp"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// Offer is one executor that a request is offered to. Who is not told may claim all the same (MESS-43).
type Offer struct {
	ID    string
	Told  bool
	Named bool // by the routing rule that matched
}

// route lists who may claim a thread, those first who are told first (MESS-41, MESS-42).
func (r *Executors) route(t *thread.Thread, now time.Time) []Offer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	pool := r.all
	if t.Only != "" {
		pool = nil
		if c := r.byID[t.Only]; c != nil {
			pool = []*candidate{c}
		}
	}
	for _, n := range t.Requires { // the rarest capability leaves least to look at
		if list := r.byCap[n.ID]; t.Only == "" && len(list) < len(pool) {
			pool = list
		}
	}
	rule := r.ruleFor(t)
	named := make(map[string]int, len(rule.Prefer))
	for i, id := range rule.Prefer {
		named[id] = i
	}
	chosen := make([]*candidate, 0, len(pool))
	for _, c := range pool {
		if !c.Pending && t.IsOfferedTo(c.ID) && c.has(t.Requires) {
			chosen = append(chosen, c)
		}
	}
	switch {
	case len(named) > 0:
		place := func(c *candidate) int {
			if i, ok := named[c.ID]; ok {
				return i
			}
			return len(named)
		}
		slices.SortStableFunc(chosen, func(a, b *candidate) int { return cmp.Compare(place(a), place(b)) })
	case rule.By == "lower_latency":
		slices.SortStableFunc(chosen, func(a, b *candidate) int { return cmp.Compare(a.median, b.median) })
	case rule.By == "higher_precision":
		byLevel(chosen, t.Requires)
	}
	offers := make([]Offer, len(chosen))
	for i, c := range chosen {
		_, isNamed := named[c.ID]
		offers[i] = Offer{ID: c.ID, Named: isNamed, Told: c.available(now, isNamed) && c.wants(t, now)}
	}
	return offers
}

// byLevel sorts by the declared level, which is read once for each.
func byLevel(list []*candidate, needs []thread.Need) {
	levels := make(map[*candidate]int, len(list))
	for _, c := range list {
		levels[c] = c.level(needs)
	}
	slices.SortStableFunc(list, func(a, b *candidate) int { return cmp.Compare(levels[b], levels[a]) })
}

// ruleFor returns the first rule that matches, else the default one, else none.
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
	if err := r.load(); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.rules), nil
}

func (r *Executors) setRules(rules []thread.Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = rules
}

// none says whether no executor is left that could claim the thread (MESS-24).
func (r *Executors) none(t *thread.Thread) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return !slices.ContainsFunc(r.all, func(c *candidate) bool {
		return !c.Pending && t.IsOfferedTo(c.ID) && c.has(t.Requires)
	})
}
