package capability

import (
	"errors"
	"slices"
	"strconv"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Capability allows the envelopes that match every part of it (MEW-55). The zero value allows nothing.
type Capability struct {
	value   wire.Value // as written
	rule    string     // kind, to and payload; capabilities with equal rules allow the same envelopes
	kinds   []textPattern
	to      []string
	hasTo   bool // the member "to" is present; if its list is empty, the capability allows nothing
	payload *shape
}

// Parse compiles a capability. A string is short for an object with this kind (MEW-D3). A pattern that exceeds a bound
// is accepted, but never matches.
func Parse(v wire.Value) (Capability, error) {
	if kind, ok := v.Str(); ok {
		v = wire.Obj(wire.TextField("kind", kind))
	}
	if v.Kind() != wire.Object {
		return Capability{}, errors.New("a capability must be an object or a string")
	}
	if len(v.JSON()) > maxCapability {
		return Capability{}, errors.New("a capability is larger than " + strconv.Itoa(maxCapability) + " bytes")
	}
	c := Capability{value: v}
	kind, _ := v.Get("kind")
	list := []wire.Value{kind}
	if kind.Kind() == wire.Array {
		list = slices.Collect(kind.Elems())
	}
	rule := wire.Obj(wire.Field("kind", kind))
	for _, k := range list {
		s, ok := k.Str()
		if !ok || s == "" {
			return Capability{}, errors.New("in a capability, kind must be a string or an array of strings")
		}
		c.kinds = append(c.kinds, compileText(s))
	}
	if to, ok := v.Get("to"); ok {
		if to.Kind() != wire.Array {
			return Capability{}, errors.New("in a capability, to must be an array of strings")
		}
		for id := range to.Elems() {
			s, ok := id.Str()
			if !ok {
				return Capability{}, errors.New("in a capability, to must be an array of strings")
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

// ParseList compiles an array of at most [MaxHeld] capabilities. It returns an error if one of them is invalid.
func ParseList(v wire.Value) ([]Capability, error) {
	if v.Kind() != wire.Array {
		return nil, errors.New("capabilities must be an array")
	}
	if v.Len() > MaxHeld {
		return nil, errors.New("more than " + strconv.Itoa(MaxHeld) + " capabilities")
	}
	out := make([]Capability, 0, v.Len())
	for elem := range v.Elems() {
		c, err := Parse(elem)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Value returns the capability as it was written.
func (c Capability) Value() wire.Value { return c.value }

// Rule returns the members of the capability that decide what it allows. Capabilities with equal rules allow the same
// envelopes.
func (c Capability) Rule() string { return c.rule }

// UnknownKeys lists the keys that have no meaning. The gateway stores and shows them, and warns the operator about them
// when it starts.
func (c Capability) UnknownKeys() []string {
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

// HasDeadPattern reports whether a pattern of the capability never matches, because it is invalid or exceeds a bound.
func (c Capability) HasDeadPattern() bool {
	return slices.ContainsFunc(c.kinds, textPattern.isDead) || c.payload != nil && c.payload.isDead()
}

// Addressee is a participant to whom an envelope is addressed. A capability may refer to it by its configured
// name or by the id under which it joined (MEW-J7).
type Addressee struct{ Name, ID string }

// allows reports whether c allows an envelope. If c has a list of addressees, the envelope must have addressees, and the
// list must contain all of them.
func (c *Capability) allows(kind string, to []Addressee, payload wire.Value, b *Budget) bool {
	if !c.allowsKind(kind, b) {
		return false
	}
	if c.hasTo {
		if len(to) == 0 {
			return false
		}
		for _, id := range to {
			if !b.takeSteps(2*len(c.to)) || !slices.Contains(c.to, id.Name) && !slices.Contains(c.to, id.ID) {
				return false
			}
		}
	}
	return c.payload == nil || c.payload.match(payload, payload, b)
}

func (c *Capability) allowsKind(kind string, b *Budget) bool {
	for i := range c.kinds {
		k := &c.kinds[i]
		if k.kind == textAny && envelope.IsSystem(kind) {
			continue // "*" alone means every kind except those of the gateway
		}
		if k.match(kind, b) {
			return true
		}
	}
	return false
}

// Contains reports whether the patterns prove that c allows every envelope that d allows. Without a proof, or once b is
// spent, it returns false, so a participant cannot grant more than it has (MEW-24).
func (c *Capability) Contains(d *Capability, b *Budget) bool {
	for i := range d.kinds {
		if !slices.ContainsFunc(c.kinds, func(k textPattern) bool { return k.containsKind(&d.kinds[i], b) }) {
			return false
		}
	}
	if c.hasTo {
		if !d.hasTo || len(d.to) == 0 {
			return false
		}
		for _, id := range d.to {
			if !b.takeSteps(len(c.to)) || !slices.Contains(c.to, id) {
				return false
			}
		}
	}
	if c.payload == nil {
		return true
	}
	return d.payload != nil && c.payload.contains(d.payload, b) && !b.spent
}

// containsKind is contains for kinds, with one exception: "*" alone does not contain the full name of a system kind.
func (t *textPattern) containsKind(other *textPattern, b *Budget) bool {
	if t.kind == textAny && other.kind == textLiteral && envelope.IsSystem(other.lit) {
		return false
	}
	return t.contains(other, b)
}

// FirstAllowing returns the first capability of a list that allows an envelope, or nil. Each call has a budget of its
// own; once the budget is spent, nothing is allowed.
func FirstAllowing(list []*Capability, kind string, to []Addressee, payload wire.Value) *Capability {
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

// FirstContaining returns the first capability of a list that contains c, or nil.
func FirstContaining(list []*Capability, c *Capability, b *Budget) *Capability {
	for _, held := range list {
		if held.Contains(c, b) {
			return held
		}
	}
	return nil
}
