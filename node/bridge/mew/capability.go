package mew

import (
	"errors"
	"slices"
	"strconv"

	"github.com/agentmesh/agentmesh/node/wire"
)

func itoa(n int) string { return strconv.Itoa(n) }

func smallInt(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	return int(n), err == nil
}

// Capability allows the envelopes that match every part of it (section 5). Make one with [ParseCapability]; the zero
// value allows nothing.
type Capability struct {
	value   wire.Value // as written, which is how it is shown
	rule    string     // kind, to and payload: two capabilities with one rule are the same
	kinds   []text
	to      []string
	hasTo   bool
	payload *shape
}

// ParseCapability compiles a capability. A string means its kind (MEW-D3). A pattern that is over a bound is no
// error: it never matches.
func ParseCapability(v wire.Value) (Capability, error) {
	if kind, ok := v.Str(); ok {
		v = wire.Obj(wire.Member{Key: "kind", Value: wire.Text(kind)})
	}
	if v.Kind() != wire.Object {
		return Capability{}, errors.New("a capability must be an object or a string")
	}
	if len(v.JSON()) > maxCapability {
		return Capability{}, errors.New("a capability is larger than " + itoa(maxCapability) + " bytes")
	}
	c := Capability{value: v}
	kind, _ := v.Get("kind")
	list := []wire.Value{kind}
	if kind.Kind() == wire.Array {
		list = slices.Collect(kind.Elems())
	}
	rule := wire.Obj(wire.Member{Key: "kind", Value: kind})
	for _, k := range list {
		s, ok := k.Str()
		if !ok || s == "" {
			return Capability{}, errors.New("the kind of a capability must be a string or an array of strings")
		}
		c.kinds = append(c.kinds, compileText(s))
	}
	if to, ok := v.Get("to"); ok {
		if to.Kind() != wire.Array {
			return Capability{}, errors.New("the to of a capability must be an array of strings")
		}
		for id := range to.Elems() {
			s, ok := id.Str()
			if !ok {
				return Capability{}, errors.New("the to of a capability must be an array of strings")
			}
			c.to = append(c.to, s)
		}
		c.hasTo = true
		rule = rule.With("to", to)
	}
	if payload, ok := v.Get("payload"); ok {
		c.payload = compileShape(payload)
		rule = rule.With("payload", payload)
	}
	c.rule = string(rule.JSON())
	return c, nil
}

// parseCapabilities compiles a list, all or none.
func parseCapabilities(v wire.Value) ([]Capability, error) {
	if v.Kind() != wire.Array {
		return nil, errors.New("capabilities must be an array")
	}
	if v.Len() > maxHeld {
		return nil, errors.New("more than " + itoa(maxHeld) + " capabilities")
	}
	out := make([]Capability, 0, v.Len())
	for elem := range v.Elems() {
		c, err := ParseCapability(elem)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Value returns the capability as it was written.
func (c Capability) Value() wire.Value { return c.value }

// unknown lists keys that mean nothing here: they are kept and shown, and warned about at load.
func (c Capability) unknown() []string {
	var out []string
	for _, m := range c.value.Members() {
		switch m.Key {
		case "id", "kind", "to", "payload":
		default:
			out = append(out, m.Key)
		}
	}
	return out
}

// hasDeadPattern reports whether a pattern of the capability does not compile or is over a bound: it never matches.
func (c Capability) hasDeadPattern() bool {
	return slices.ContainsFunc(c.kinds, text.isDead) || c.payload != nil && c.payload.isDead()
}

// addressee is a participant in to, by both of its ids (MEW-J7).
type addressee struct{ name, runtime string }

// allows says whether the capability allows an envelope with this kind, these addressees and this payload.
func (c *Capability) allows(kind string, to []addressee, payload wire.Value, b *budget) bool {
	if !c.allowsKind(kind, b) {
		return false
	}
	if c.hasTo {
		if len(to) == 0 {
			return false
		}
		for _, id := range to {
			if !slices.Contains(c.to, id.name) && !slices.Contains(c.to, id.runtime) {
				return false
			}
		}
	}
	return c.payload == nil || c.payload.match(payload, payload, b)
}

func (c *Capability) allowsKind(kind string, b *budget) bool {
	for i := range c.kinds {
		k := &c.kinds[i]
		if k.kind == textAny && isSystem(kind) {
			continue // "*" alone is every kind but the gateway's own
		}
		if k.match(kind, b) {
			return true
		}
	}
	return false
}

// Contains says whether every envelope that d allows is allowed by c, where the texts tell (section 5). What they do
// not tell is not contained: nobody gives what he may not have (MEW-24).
func (c *Capability) Contains(d *Capability) bool { return c.contains(d, newComparison()) }

func (c *Capability) contains(d *Capability, b *budget) bool {
	for i := range d.kinds {
		if !slices.ContainsFunc(c.kinds, func(k text) bool { return k.containsKind(&d.kinds[i], b) }) {
			return false
		}
	}
	if c.hasTo {
		if !d.hasTo || len(d.to) == 0 {
			return false
		}
		for _, id := range d.to {
			if !slices.Contains(c.to, id) {
				return false
			}
		}
	}
	if c.payload == nil {
		return true
	}
	return d.payload != nil && c.payload.contains(d.payload, b) && !b.spent
}

// containsKind is contains for kinds, where "*" alone leaves out system kinds.
func (t *text) containsKind(c *text, b *budget) bool {
	if t.kind == textAny && c.kind == textLiteral && isSystem(c.lit) {
		return t.source == c.source
	}
	return t.contains(c, b)
}

// allowing returns the first of a list that allows an envelope, nil where none does.
func allowing(list []*Capability, kind string, to []addressee, payload wire.Value) *Capability {
	b := newBudget()
	for _, c := range list {
		if c.allows(kind, to, payload, b) && !b.spent {
			return c
		}
		if b.spent {
			return nil
		}
	}
	return nil
}

// containing returns the first of a list that contains c, nil where none does.
func containing(list []*Capability, c *Capability, b *budget) *Capability {
	for _, held := range list {
		if held.contains(c, b) {
			return held
		}
	}
	return nil
}
