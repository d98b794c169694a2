package thread

import (
	"slices"

	"github.com/agentmesh/agentmesh/node/wire"
)

// InheritFields returns part, one of the requests into which original is split, with the fields of original that
// part does not set. It does not copy the compensation, which is for the whole request, or the start, the expiry
// and the dependencies, which the new thread gets from the old one (see [Thread.Inherit]). The caller sets
// confirm_before.
func InheritFields(part, original wire.Value) wire.Value {
	limits, _ := part.Get("constraints")
	timing, _ := limits.Get("timing")
	for _, key := range []string{"precision", "requires", "context", "response_hint", "priority", "needed_by"} {
		// an inherited needed_by would override the expiry that the part sets
		if m, ok := original.Get(key); ok && !HasValue(part, key) && (key != "needed_by" || !HasValue(timing, "expires")) {
			part = part.With(key, m)
		}
	}
	originalLimits, _ := original.Get("constraints")
	originalTiming, _ := originalLimits.Get("timing")
	limits = FillMissing(limits, originalLimits.Without("timing", "depends_on"))
	if timing = FillMissing(timing, originalTiming.Without("not_before", "expires")); timing.Len() > 0 {
		limits = limits.With("timing", timing)
	}
	if limits.Len() > 0 {
		part = part.With("constraints", limits)
	}
	return part
}

// UniteFields returns the precision, urgency, context, hints, environment and location of a request that replaces
// several others. The precision and the urgency are the highest. A request has one location, so different locations
// become context. If a request has needed_by, the result has it too; [WithTimes] sets its value.
func UniteFields(requests []wire.Value) wire.Value {
	out, limits := wire.Obj(), wire.Obj()
	lists, added := map[string][]wire.Value{}, map[string]bool{}
	add := func(name string, elems wire.Value) {
		for e := range elems.Elems() {
			if key := name + string(e.JSON()); !added[key] {
				added[key] = true
				lists[name] = append(lists[name], e)
			}
		}
	}
	precision, urgency := -1, -1
	for _, r := range requests {
		constraints, _ := r.Get("constraints")
		timing, _ := constraints.Get("timing")
		precision = max(precision, slices.Index(Precisions, r.GetStr("precision")))
		urgency = max(urgency, slices.Index(Urgencies, timing.GetStr("urgency")))
		for _, key := range []string{"context", "response_hint"} {
			list, _ := r.Get(key)
			add(key, list)
		}
		environment, _ := constraints.Get("environment")
		add("environment", environment)
		if HasValue(constraints, "location") {
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
		out = out.With("precision", wire.Text(Precisions[precision]))
	}
	if urgency >= 0 {
		limits = limits.With("timing", wire.Obj(wire.TextField("urgency", Urgencies[urgency])))
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

// WithTimes returns the request of a thread with the thread's start, deadline and dependencies. They replace the times
// and dependencies that body names: a duration would start over in a new thread, and a dependency that is given by name
// could mean a newer thread by now.
func WithTimes(body wire.Value, th *Thread) wire.Value {
	limits, _ := body.Get("constraints")
	timing, _ := limits.Get("timing")
	timing = FillMissing(timing, wire.Value{}).Without("not_before", "expires") // an object even if it was absent
	if !th.NotBefore.IsZero() {
		timing = timing.With("not_before", TimeText(th.NotBefore))
	}
	switch {
	case th.Deadline.IsZero():
	case HasValue(body, "needed_by"):
		body = body.With("needed_by", TimeText(th.Deadline))
	default:
		timing = timing.With("expires", TimeText(th.Deadline))
	}
	limits = FillMissing(limits, wire.Value{}).Without("timing", "depends_on")
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

// HasValue reports whether an object has the member, with a value other than null.
func HasValue(v wire.Value, key string) bool {
	m, ok := v.Get(key)
	return ok && !m.IsNull()
}

// FillMissing returns v with the members of defaults that are missing or null in v. A v that is not an object counts as
// an empty one.
func FillMissing(v, defaults wire.Value) wire.Value {
	if v.Kind() != wire.Object {
		v = wire.Obj()
	}
	for _, m := range defaults.Members() {
		if !HasValue(v, m.Key) {
			v = v.With(m.Key, m.Value)
		}
	}
	return v
}

// Inherit gives a successor the conversation and the reply address of the first of the threads that it replaces. It
// begins no sooner and expires no later than any of them, and has their dependencies, except those on each other.
func (t *Thread) Inherit(from ...*Thread) {
	t.External = from[0].External
	if p, ok := from[0].Peers[from[0].Requester]; ok {
		p.Name = ""
		t.Peers = map[string]Peer{from[0].Requester: p}
	}
	for _, th := range from {
		if !th.Deadline.IsZero() && (t.Deadline.IsZero() || th.Deadline.Before(t.Deadline)) {
			t.Deadline = th.Deadline
		}
		if th.NotBefore.After(t.NotBefore) {
			t.NotBefore = th.NotBefore
		}
		for _, ref := range th.DependsOn {
			if !slices.Contains(t.DependsOn, ref) && !slices.ContainsFunc(from, func(old *Thread) bool { return old.Ref == ref }) {
				t.DependsOn = append(t.DependsOn, ref)
			}
		}
	}
}
