package capability

import (
	"slices"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// shape is a compiled value pattern (MEW-55).
type shape struct {
	kind  wire.Kind   // Array: one of elems must match; Object: all of keys must match
	text  textPattern // for kind String
	num   string      // for kind Number, normalized
	elems []*shape
	keys  []keyShape
}

type keyShape struct {
	source string
	kind   keyKind
	glob   *glob
	path   path
	value  *shape
}

type keyKind uint8

const (
	keyNever keyKind = iota
	keyLiteral
	keyGlob
	keyDeep // **: this value or any below it
	keyPath // a JSONPath from the payload
)

func compileShape(v wire.Value) *shape {
	s := &shape{kind: v.Kind()}
	switch s.kind {
	case wire.String:
		source, _ := v.Str()
		s.text = compileText(source)
	case wire.Number:
		token, _ := v.Num()
		s.num = normalNumber(token)
	case wire.Array:
		for elem := range v.Elems() {
			s.elems = append(s.elems, compileShape(elem))
		}
	case wire.Object:
		for _, m := range v.Members() {
			s.keys = append(s.keys, compileKey(m))
		}
	}
	return s
}

func compileKey(m wire.Member) keyShape {
	k := keyShape{source: m.Key, value: compileShape(m.Value)}
	switch {
	case strings.HasPrefix(m.Key, "$"):
		if p, ok := compilePath(m.Key); ok {
			k.kind, k.path = keyPath, p
		}
	case m.Key == "**":
		k.kind = keyDeep
	case len(m.Key) > maxPattern: // keyNever
	case isGlob(m.Key):
		k.kind, k.glob = keyGlob, newGlob(m.Key)
	default:
		k.kind = keyLiteral
	}
	return k
}

// isDead reports whether the shape contains a pattern, of a value or of a key, that never matches.
func (s *shape) isDead() bool {
	return s.kind == wire.String && s.text.isDead() || slices.ContainsFunc(s.elems, (*shape).isDead) ||
		slices.ContainsFunc(s.keys, func(k keyShape) bool { return k.kind == keyNever || k.value.isDead() })
}

// match reports whether v has this shape. root is the payload, in which JSONPath keys begin.
func (s *shape) match(v, root wire.Value, b *Budget) bool {
	if !b.takeNode() {
		return false
	}
	switch s.kind {
	case wire.Array:
		return slices.ContainsFunc(s.elems, func(alternative *shape) bool { return alternative.match(v, root, b) })
	case wire.Object:
		if v.Kind() != wire.Object {
			return false
		}
		for i := range s.keys {
			if !s.keys[i].match(v, root, b) {
				return false
			}
		}
		return true
	case wire.String:
		str, ok := v.Str()
		return ok && s.text.match(str, b)
	case wire.Number:
		token, ok := v.Num()
		return ok && b.takeSteps(len(token)) && normalNumber(token) == s.num
	}
	return v.Kind() == s.kind
}

func (k *keyShape) match(v, root wire.Value, b *Budget) bool {
	switch k.kind {
	case keyLiteral:
		val, ok := v.Get(k.source)
		return b.takeSteps(v.Len()) && ok && k.value.match(val, root, b)
	case keyGlob:
		for _, m := range v.Members() {
			if !b.takeNode() {
				return false
			}
			if k.matchKey(m.Key, b) && k.value.match(m.Value, root, b) {
				return true
			}
		}
	case keyDeep:
		return k.matchDeep(v, root, b)
	case keyPath:
		return k.path.find(root, b, func(hit wire.Value) bool { return k.value.match(hit, root, b) })
	}
	return false
}

// matchKey reports whether the pattern of the key matches. "*" alone matches every key, as it matches every string.
func (k *keyShape) matchKey(key string, b *Budget) bool {
	return k.source == "*" || k.glob.match(key, b)
}

// matchDeep reports whether v or a value below it matches.
func (k *keyShape) matchDeep(v, root wire.Value, b *Budget) bool {
	return b.takeNode() && (k.value.match(v, root, b) ||
		anyChild(v, func(child wire.Value) bool { return k.matchDeep(child, root, b) }))
}

// contains reports whether the patterns prove that s matches every value that other matches.
func (s *shape) contains(other *shape, b *Budget) bool {
	if !b.takeNode() {
		return false
	}
	if other.kind == wire.Array { // s must contain every alternative
		return !slices.ContainsFunc(other.elems, func(alternative *shape) bool { return !s.contains(alternative, b) })
	}
	switch {
	case s.kind == wire.Array:
		return slices.ContainsFunc(s.elems, func(alternative *shape) bool { return alternative.contains(other, b) })
	case s.kind != other.kind:
		return false
	case s.kind == wire.String:
		return s.text.contains(&other.text, b)
	case s.kind == wire.Number:
		return s.num == other.num
	case s.kind == wire.Object:
		for i := range s.keys {
			if !other.containsKey(&s.keys[i], b) {
				return false
			}
		}
	}
	return true
}

// containsKey reports whether the object pattern s has the same key as k, with a value that the value of k contains.
func (s *shape) containsKey(k *keyShape, b *Budget) bool {
	for i := range s.keys {
		if !b.takeSteps(1) {
			return false
		}
		if s.keys[i].source == k.source {
			return k.value.contains(s.keys[i].value, b)
		}
	}
	return false
}

// normalNumber returns the same text for all tokens of one number, such as 1, 1.0 and 10e-1. It returns the token
// itself if its length or its exponent is larger than any sensible number needs.
func normalNumber(token string) string {
	const longest = 64
	if len(token) > longest {
		return token
	}
	mantissa, exponent := token, 0
	if i := strings.IndexAny(token, "eE"); i >= 0 {
		mantissa = token[:i]
		e, err := strconv.ParseInt(token[i+1:], 10, 32)
		if err != nil {
			return token
		}
		exponent = int(e)
	}
	sign := ""
	if mantissa[0] == '-' {
		sign, mantissa = "-", mantissa[1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	trimmed := strings.TrimRight(digits, "0")
	if trimmed == "" {
		return "0"
	}
	exponent += len(digits) - len(trimmed)
	return sign + trimmed + "e" + strconv.Itoa(exponent)
}
