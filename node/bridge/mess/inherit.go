package mess

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What takes the place of a request says what the work needs, in full: who works on it sees the older threads only where it
// has a part in them.

// maxCopied bounds the files that one unit reads for new threads, and what it writes of them.
const maxCopied = 64 << 20

var errCopies = thread.Conflict("the files of the request are too large to be copied to the new threads")

// whole returns the request of a thread for what takes its place. The files that stand beside the thread go along: they are
// named by addresses that mean something in this transaction alone, and become attachments of the thread that names them.
func (t *tx) whole(ctx context.Context, th *thread.Thread) (wire.Value, error) {
	body, err := t.original(ctx, th)
	if err != nil {
		return body, err
	}
	list, _ := body.Get("context")
	if list.Kind() != wire.Array {
		return body, nil
	}
	elems := slices.Collect(list.Elems())
	for i, c := range elems {
		if c.Len() != 1 || resourceURI(c.Members()[0].Key, wire.Text("any")) == "" || !thread.AttachmentName.MatchString(c.At(0).GetStr("file")) {
			continue
		}
		rec, err := t.kept(ctx, nsFiles, th.Ref+"/"+c.At(0).GetStr("file"))
		if ignoreMissing(err) != nil {
			return body, err
		}
		var a Attachment
		if err != nil || json.Unmarshal(rec.Body, &a) != nil {
			continue // named and never there
		}
		if t.read += len(a.Data); t.read > maxCopied {
			return body, errCopies
		}
		uri := "copy:" + rand.Text()
		if t.own == nil {
			t.own = map[string]ownFile{}
		}
		t.own[uri] = ownFile{mime: a.Mime, data: a.Data, copied: true}
		form := wire.Obj(wire.TextField("uri", uri))
		if name, ok := c.At(0).Get("name"); ok {
			form = form.With("name", name)
		}
		elems[i] = wire.Obj(wire.Field(c.Members()[0].Key, form))
	}
	return body.With("context", wire.Arr(elems...)), nil
}

// kept returns a record as this block leaves it.
func (t *tx) kept(ctx context.Context, ns, key string) (store.Record, error) {
	i := slices.IndexFunc(t.changes, func(c store.Change) bool { return c.Record.NS == ns && c.Record.Key == key && !c.Delete })
	if i >= 0 {
		return t.changes[i].Record, nil
	}
	return t.x.records.Get(ctx, ns, key, t.now)
}

// saysIn reports whether a map has a member that is not null.
func saysIn(v wire.Value, key string) bool {
	m, ok := v.Get(key)
	return ok && !m.IsNull()
}

// within is what a part of a request asks for: its own words, and those of the whole where it has none. What is paid for the
// whole is not paid for each part, and spans are not counted anew (see [shown]).
func within(part, whole wire.Value) wire.Value {
	limits, _ := part.Get("constraints")
	timing, _ := limits.Get("timing")
	for _, key := range []string{"precision", "requires", "context", "response_hint", "priority", "needed_by"} {
		if m, ok := whole.Get(key); ok && !saysIn(part, key) && (key != "needed_by" || !saysIn(timing, "expires")) {
			part = part.With(key, m)
		}
	}
	all, _ := whole.Get("constraints")
	wholeTiming, _ := all.Get("timing")
	limits = filled(limits, all.Without("timing", "depends_on"))
	if timing = filled(timing, wholeTiming.Without("not_before", "expires")); timing.Len() > 0 {
		limits = limits.With("timing", timing)
	}
	if limits.Len() > 0 {
		part = part.With("constraints", limits)
	}
	return part
}

// filled is a map with the members of another one that it lacks.
func filled(v, from wire.Value) wire.Value {
	if v.Kind() != wire.Object {
		v = wire.Obj()
	}
	for _, m := range from.Members() {
		if !saysIn(v, m.Key) {
			v = v.With(m.Key, m.Value)
		}
	}
	return v
}

// united is what several requests ask for beside their intents and capabilities. Places that differ stand in the context:
// a request has one location.
func united(requests []wire.Value) wire.Value {
	out, limits := wire.Obj(), wire.Obj()
	lists, there := map[string][]wire.Value{}, map[string]bool{}
	add := func(to string, from wire.Value) {
		for e := range from.Elems() {
			if key := to + string(e.JSON()); !there[key] {
				there[key] = true
				lists[to] = append(lists[to], e)
			}
		}
	}
	precision, urgency := -1, -1
	for _, r := range requests {
		constraints, _ := r.Get("constraints")
		timing, _ := constraints.Get("timing")
		precision = max(precision, slices.Index(thread.Precisions, r.GetStr("precision")))
		urgency = max(urgency, slices.Index(thread.Urgencies, timing.GetStr("urgency")))
		for _, key := range []string{"context", "response_hint"} {
			list, _ := r.Get(key)
			add(key, list)
		}
		environment, _ := constraints.Get("environment")
		add("environment", environment)
		if saysIn(constraints, "location") {
			at, _ := constraints.Get("location")
			add("location", wire.Arr(at))
		}
		if by, ok := r.Get("needed_by"); ok {
			out = out.With("needed_by", by)
		}
	}
	if places := lists["location"]; len(places) == 1 {
		limits = limits.With("location", places[0])
	} else {
		for _, at := range places {
			lists["context"] = append(lists["context"], wire.Obj(wire.Field("location", at)))
		}
	}
	if precision >= 0 {
		out = out.With("precision", wire.Text(thread.Precisions[precision]))
	}
	if urgency >= 0 {
		limits = limits.With("timing", wire.Obj(wire.TextField("urgency", thread.Urgencies[urgency])))
	}
	for _, key := range []string{"context", "response_hint"} {
		if len(lists[key]) > 0 {
			out = out.With(key, wire.Arr(lists[key]...))
		}
	}
	if len(lists["environment"]) > 0 {
		limits = limits.With("environment", wire.Arr(lists["environment"]...))
	}
	if limits.Len() > 0 {
		out = out.With("constraints", limits)
	}
	return out
}

// shown writes into a request what holds for its thread: from when, until when, and after what, whatever it said in words
// that would be counted from another moment or mean something to another requester.
func shown(body wire.Value, th *thread.Thread) wire.Value {
	limits, _ := body.Get("constraints")
	timing, _ := limits.Get("timing")
	timing = filled(timing, wire.Value{}).Without("not_before", "expires")
	if !th.NotBefore.IsZero() {
		timing = timing.With("not_before", thread.TimeText(th.NotBefore))
	}
	switch {
	case th.Deadline.IsZero():
	case saysIn(body, "needed_by"):
		body = body.With("needed_by", thread.TimeText(th.Deadline))
	default:
		timing = timing.With("expires", thread.TimeText(th.Deadline))
	}
	limits = filled(limits, wire.Value{}).Without("timing", "depends_on")
	if timing.Len() > 0 {
		limits = limits.With("timing", timing)
	}
	if len(th.DependsOn) > 0 {
		limits = limits.With("depends_on", wire.Texts(th.DependsOn))
	}
	if limits.Len() == 0 {
		return body.Without("constraints")
	}
	return body.With("constraints", limits)
}

// leadTo says whether one of the threads is one of others, or waits for one, by however many steps. Beyond a bound it may.
func (t *tx) leadTo(ctx context.Context, refs, others []string, seen map[string]bool) (bool, error) {
	for _, ref := range refs {
		if slices.Contains(others, ref) || len(seen) > 1000 {
			return true, nil
		}
		if seen[ref] {
			continue
		}
		seen[ref] = true
		th, err := t.load(ctx, ref)
		if err != nil {
			if ignoreMissing(err) != nil {
				return false, err
			}
			continue
		}
		if found, err := t.leadTo(ctx, slices.Concat(th.DependsOn, th.Successors), others, seen); found || err != nil {
			return found, err
		}
	}
	return false, nil
}
