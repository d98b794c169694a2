package exchange

import (
	"context"
	"fmt"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxResults bounds the threads or executors in the answer to one query; maxQueries bounds the queries in one block.
const (
	maxResults = 1000
	maxQueries = 20
)

// applyQuery implements MESS-36: the answer is a response with one structured entry, limited to what the actor may see.
func (t *tx) applyQuery(ctx context.Context, e thread.Entry, path string) error {
	q, err := thread.ReadQuery(e.Body, path)
	if err != nil {
		return err
	}
	answered := 0
	for _, a := range t.answers {
		if a.Type == "response" {
			answered++
		}
	}
	if answered == maxQueries {
		return thread.Bad(path, fmt.Sprintf("a block may have at most %d queries", maxQueries))
	}
	var data wire.Value
	switch q.Type {
	case "capabilities":
		data = wire.Obj(wire.Field("capabilities", registry.CapabilityArray(t.x.Executors.Available(q.Tags))))
	case "executors":
		data = wire.Obj(wire.Field("executors", t.x.Executors.Tree(q, t.who.Owner, maxResults)))
	default:
		list, err := t.listRequests(ctx, q)
		if err != nil {
			return err
		}
		data = wire.Obj(wire.Field("requests", list))
	}
	t.answers = append(t.answers, thread.Entry{Type: "response", Body: wire.Obj(
		wire.TextField("re", "last"),
		wire.Field("content", wire.Arr(wire.Obj(wire.Field("structured", data)))),
	)})
	return nil
}

// listRequests returns the requests that a query selects.
func (t *tx) listRequests(ctx context.Context, q thread.Query) (wire.Value, error) {
	var threads []Summary
	matches := func(s Summary) bool {
		return (len(q.Status) == 0 || slices.Contains(q.Status, s.Status)) && (q.Executor == "" || q.Executor == s.Holder) &&
			(q.Since.IsZero() || !s.Updated.Before(q.Since))
	}
	if len(q.Re) > 0 {
		for _, re := range q.Re {
			to, ok := thread.Resolve(view{t, ctx, allTags}, re, t.x.id)
			if !ok {
				return wire.Value{}, newUnknownNameError(re)
			}
			th, err := t.load(ctx, to.Ref)
			if err != nil {
				return wire.Value{}, explainMissing(err, re)
			}
			if t.x.canSee(t.who, th) {
				threads = append(threads, Summarize(th))
			}
		}
	} else {
		const anyCode, start = "", ""
		page, err := t.x.list(ctx, t.who, anyCode, start, maxResults, func(e *entry) bool { s, _ := e.summary(); return matches(s) })
		if err != nil {
			return wire.Value{}, err
		}
		for _, ref := range t.changedRefs { // as this block leaves them
			if th := t.threads[ref]; t.x.canSee(t.who, th) {
				threads = append(threads, Summarize(th))
			}
		}
		threads = append(threads, slices.DeleteFunc(page.Threads, func(s Summary) bool { return slices.Contains(t.changedRefs, s.Ref) })...)
	}
	var out []wire.Value
	for _, th := range threads {
		if !matches(th) {
			continue
		}
		v := wire.Obj(wire.TextField("ref", th.Ref))
		if th.Requester == t.who.ID || t.who.Owner {
			v = v.WithOptional("id", th.ClientID)
		}
		out = append(out, v.With("status", wire.Text(string(th.Status))).With("intent", wire.Text(th.Intent)).
			WithOptional("executor", th.Holder).With("updated", thread.TimeText(th.Updated)))
	}
	return wire.Arr(out...), nil
}

// applyConfig implements MESS-37: an executor may configure itself, and the owner may configure everything.
func (t *tx) applyConfig(ctx context.Context, e thread.Entry, path string) error {
	c, err := thread.ReadConfig(e.Body, path)
	if err != nil {
		return err
	}
	if !c.Rules.IsNull() {
		if !t.who.Owner {
			return thread.Forbidden("only the owner may set routing rules")
		}
		if !t.registry.Rules.IsNull() {
			return thread.Bad(path+".routing", "is set twice in the block")
		}
		t.registry.Rules = c.Rules
		t.changes = append(t.changes, registry.RulesChange(c.Rules))
		t.ack(e, "routing")
		return nil
	}
	wanted := c.Executor
	if !t.who.Owner && wanted.ID != t.who.ID {
		return thread.Forbidden("an executor may configure only itself")
	}
	if thread.IsReserved(wanted.ID) {
		return thread.Bad(path+".executor.id", "is reserved")
	}
	if slices.ContainsFunc(t.registry.Executors, func(e *registry.Executor) bool { return e.ID == wanted.ID }) {
		return thread.Bad(path+".executor", "is set up twice in the block")
	}
	ex, change, err := t.x.Executors.Configure(ctx, *wanted, t.who.Owner, t.now)
	if err != nil {
		return err
	}
	t.changes = append(t.changes, change)
	t.registry.Executors = append(t.registry.Executors, ex)
	t.ack(e, "executors/"+ex.ID)
	return nil
}
