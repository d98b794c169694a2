package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Capability is an entry of the catalog. The catalog only informs: other ids are valid too (MESS-40).
type Capability struct {
	ID          string     `json:"id"`
	Description string     `json:"description"`
	Tags        []string   `json:"tags,omitempty"`
	Definition  wire.Value `json:"definition,omitzero"`
}

const maxCapabilities = 10_000

// Available returns the catalog, and the ids of the capabilities of approved executors that the catalog does not
// describe (MESS-36), at most maxCapabilities in all. With tags it returns only catalog entries that have any of them,
// because nothing else has tags. The result is in the order of the ids.
func (r *Executors) Available(tags []string) []Capability {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var list []Capability
	for _, c := range r.catalog {
		if len(tags) == 0 || c.hasTag(tags) {
			list = append(list, c)
		}
	}
	for id, executors := range r.byCap {
		_, isDescribed := r.catalog[id]
		if len(tags) == 0 && !isDescribed && len(list) < maxCapabilities && hasApproved(executors) {
			list = append(list, Capability{ID: id})
		}
	}
	slices.SortFunc(list, func(a, b Capability) int { return strings.Compare(a.ID, b.ID) })
	return list
}

func hasApproved(executors map[string]*Executor) bool {
	for _, e := range executors {
		if !e.Pending {
			return true
		}
	}
	return false
}

// hasTag reports whether the capability has one of the tags.
func (c Capability) hasTag(tags []string) bool {
	return slices.ContainsFunc(c.Tags, func(t string) bool { return slices.Contains(tags, t) })
}

// ParseCapabilities parses catalog documents: a YAML stream of {id, description, tags?, definition?} (MESS-40), one
// list of them, or a map whose only key, capabilities, has that list.
func ParseCapabilities(data []byte) ([]Capability, error) {
	docs, err := thread.ParseDocuments(data)
	if err != nil {
		return nil, err
	}
	list := thread.Values(docs)
	if len(list) == 1 && list[0].Len() == 1 {
		if inner, ok := list[0].Get("capabilities"); ok {
			list[0] = inner
		}
	}
	if len(list) == 1 && list[0].Kind() == wire.Array {
		list = slices.Collect(list[0].Elems())
	}
	var out []Capability
	for i, doc := range list {
		f := thread.NewFields(doc, fmt.Sprintf("capability[%d]", i))
		c := Capability{ID: f.Required("id", thread.MaxID), Description: f.Text("description", thread.MaxProse), Tags: f.Texts("tags", 100)}
		c.Definition, _ = f.Get("definition")
		if err := f.Err(); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, thread.Bad("", "the document has no capability")
	}
	return out, nil
}

// AddCapabilities adds or replaces entries of the catalog. The caller checks that the owner asked for it.
func (r *Executors) AddCapabilities(ctx context.Context, list []Capability) error {
	if err := r.cfg.Load(); err != nil {
		return err
	}
	if !r.hasRoom(list) {
		return thread.Conflict("the catalog is full")
	}
	var changes []store.Change
	for _, c := range list {
		changes = append(changes, store.Change{Record: store.Record{NS: NSCapabilities, Key: c.ID, Body: wire.MustMarshal(c)}, IfRev: store.Any})
	}
	if err := r.cfg.Records.Apply(ctx, changes, time.Now()); err != nil {
		return err
	}
	r.add(list)
	return nil
}

// hasRoom reports whether the catalog has room for the new entries of a list.
func (r *Executors) hasRoom(list []Capability) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	added := map[string]bool{}
	for _, c := range list {
		if _, known := r.catalog[c.ID]; !known {
			added[c.ID] = true
		}
	}
	return len(r.catalog)+len(added) <= maxCapabilities
}

// add adds or replaces entries of the catalog in memory.
func (r *Executors) add(list []Capability) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range list {
		r.catalog[c.ID] = c
	}
}

// Restore loads the registry from the store. It may be called again after a failure.
func (r *Executors) Restore(ctx context.Context, now time.Time) error {
	if err := r.accounts.Load(ctx); err != nil {
		return err
	}
	var list []Capability
	for c, err := range store.DecodeAll(ctx, r.cfg.Records, NSCapabilities, "", now, store.Decode[Capability]) {
		if err != nil {
			return fmt.Errorf("load the catalog: %w", err)
		}
		list = append(list, c)
	}
	r.add(list)
	var rules wire.Value
	_, found, err := store.ReadRecord(ctx, r.cfg.Records, NSMeta, "routing", &rules, now)
	if found {
		r.setRules(rules)
	}
	return err
}

// CapabilityArray returns capabilities as MESS shows them.
func CapabilityArray(list []Capability) wire.Value {
	out := make([]wire.Value, len(list))
	for i, c := range list {
		out[i] = wire.Obj(wire.TextField("id", c.ID), wire.TextField("description", c.Description))
		if len(c.Tags) > 0 {
			out[i] = out[i].With("tags", wire.Texts(c.Tags))
		}
	}
	return wire.Arr(out...)
}
