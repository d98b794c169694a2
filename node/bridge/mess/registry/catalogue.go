package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Capability is an entry of the catalogue. The catalogue only informs: other ids are valid too (MESS-40).
type Capability struct {
	ID          string     `json:"id"`
	Description string     `json:"description"`
	Tags        []string   `json:"tags,omitempty"`
	Definition  wire.Value `json:"definition,omitzero"`
}

const maxCapabilities = 10_000

// catalogue is the list of described capabilities, in the order of their ids.
type catalogue struct {
	catMu sync.RWMutex
	known []Capability
}

// capabilities returns the catalogue or, with tags, the entries that have any of them.
func (c *catalogue) capabilities(tags []string) []Capability {
	c.catMu.RLock()
	defer c.catMu.RUnlock()
	var out []Capability
	for _, e := range c.known {
		if len(tags) == 0 || slices.ContainsFunc(e.Tags, func(t string) bool { return slices.Contains(tags, t) }) {
			out = append(out, e)
		}
	}
	return out
}

// Available returns the catalogue and the capabilities of executors here that the catalogue does not describe, with
// only their ids (MESS-36). With tags it returns only catalogue entries, because nothing else has tags.
func (r *Executors) Available(tags []string) []Capability {
	list := r.capabilities(tags)
	if len(tags) > 0 {
		return list
	}
	described := len(list)
	for _, id := range r.capabilityIDs() {
		_, ok := slices.BinarySearchFunc(list[:described], id, Capability.compareID)
		if !ok && len(list) < maxCapabilities {
			list = append(list, Capability{ID: id})
		}
	}
	slices.SortFunc(list, func(a, b Capability) int { return a.compareID(b.ID) })
	return list
}

func (c Capability) compareID(id string) int { return strings.Compare(c.ID, id) }

func (c *catalogue) hasTag(id string, tags []string) bool {
	c.catMu.RLock()
	defer c.catMu.RUnlock()
	i, ok := slices.BinarySearchFunc(c.known, id, Capability.compareID)
	return ok && slices.ContainsFunc(c.known[i].Tags, func(t string) bool { return slices.Contains(tags, t) })
}

// ParseCapabilities parses catalogue documents: a YAML stream of {id, description, tags?, definition?} (MESS-40), one
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

// AddCapabilities adds or replaces entries of the catalogue. The caller checks that the owner asked for it.
func (r *Executors) AddCapabilities(ctx context.Context, list []Capability) error {
	if err := r.cfg.Load(); err != nil {
		return err
	}
	if len(mergeCapabilities(r.capabilities(nil), list)) > maxCapabilities {
		return thread.Conflict("the catalogue is full")
	}
	var changes []store.Change
	for _, c := range list {
		changes = append(changes, store.Change{Record: store.Record{NS: NSCapabilities, Key: c.ID, Body: thread.Encode(c)}, IfRev: store.Any})
	}
	if err := r.cfg.Records.Apply(ctx, changes, time.Now()); err != nil {
		return err
	}
	r.add(list)
	return nil
}

func (c *catalogue) add(list []Capability) {
	c.catMu.Lock()
	defer c.catMu.Unlock()
	c.known = mergeCapabilities(c.known, list)
}

// mergeCapabilities returns the entries of known and list in the order of their ids. Those of list take precedence.
func mergeCapabilities(known, list []Capability) []Capability {
	known = slices.Clone(known)
	for _, e := range list {
		i, ok := slices.BinarySearchFunc(known, e.ID, Capability.compareID)
		if ok {
			known[i] = e
			continue
		}
		known = slices.Insert(known, i, e)
	}
	return known
}

// Restore loads the registry from the store. It may be called again after a failure.
func (r *Executors) Restore(ctx context.Context, now time.Time) error {
	var executors []*Executor
	for e, err := range store.DecodeAll(ctx, r.cfg.Records, NSExecutors, "", now, decodeExecutor) {
		if err != nil {
			return fmt.Errorf("load executors: %w", err)
		}
		executors = append(executors, e)
	}
	slices.SortFunc(executors, (*Executor).compare) // so that each is inserted at the end
	for _, e := range executors {
		r.put(e)
	}
	if err := r.restoreMeta(ctx, now); err != nil {
		return fmt.Errorf("load catalogue and routing: %w", err)
	}
	return nil
}

func (r *Executors) restoreMeta(ctx context.Context, now time.Time) error {
	var list []Capability
	for c, err := range store.DecodeAll(ctx, r.cfg.Records, NSCapabilities, "", now, store.Decode[Capability]) {
		if err != nil {
			return err
		}
		list = append(list, c)
	}
	r.add(list)
	var rules []thread.Rule
	if _, found, err := store.ReadRecord(ctx, r.cfg.Records, NSMeta, "routing", &rules, now); err != nil || !found {
		return err
	}
	r.setRules(rules)
	return nil
}

// CapabilityTree returns capabilities as MESS shows them.
func CapabilityTree(list []Capability) wire.Value {
	out := make([]wire.Value, len(list))
	for i, c := range list {
		out[i] = wire.Obj(wire.TextField("id", c.ID), wire.TextField("description", c.Description))
		if len(c.Tags) > 0 {
			out[i] = out[i].With("tags", wire.Texts(c.Tags))
		}
	}
	return wire.Arr(out...)
}
