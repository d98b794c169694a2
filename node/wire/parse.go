package wire

import (
	"fmt"
	"strings"
)

// Limits of the strict reader (AM-12).
const (
	MaxDepth  = 32    // levels of nested arrays and objects, including the outermost
	MaxValues = 10000 // values in one text, including arrays and objects
	// MaxSafeInteger is the largest integer that every JSON implementation reads exactly, 2^53−1.
	MaxSafeInteger = 1<<53 - 1
)

// SyntaxError tells why the strict reader refused a text. Reason is fixed text and quotes nothing from the input.
type SyntaxError struct {
	Offset int // byte offset at which the reader stopped
	Reason string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.Reason, e.Offset) }

// Parse reads one JSON value under AM-12: UTF-8 without byte order mark, no text after the value, no duplicate key at
// any depth, no lone surrogate, no key "__proto__", no number beyond ±(2^53−1) however it is spelled, at most [MaxDepth]
// levels and [MaxValues] values. The error is a *[SyntaxError].
func Parse(data []byte) (Value, error) {
	return ParseLimits(data, MaxDepth, MaxValues)
}

// ParseLimits is [Parse] with other limits.
func ParseLimits(data []byte, maxDepth, maxValues int) (Value, error) {
	return parse(parser{text: string(data), depth: maxDepth, values: maxValues})
}

// ParseForeign is [ParseLimits] for texts of other protocols that we only pass on. It keeps every JSON number.
func ParseForeign(data []byte, maxDepth, maxValues int) (Value, error) {
	return parse(parser{text: string(data), depth: maxDepth, values: maxValues, anyNumber: true})
}

func parse(p parser) (Value, error) {
	var open stack
	p.slab = make([]Member, min(maxMembers(p.text), slabSize))
	p.skipSpace()
	v, err := p.value(&open)
	if err != nil {
		return Value{}, err
	}
	p.skipSpace()
	if p.pos < len(p.text) {
		return Value{}, p.fail("text after the value")
	}
	return v, nil
}

// ParseObject is [Parse] for a text that must be an object.
func ParseObject(data []byte) (Value, error) {
	v, err := Parse(data)
	if err != nil {
		return Value{}, err
	}
	if v.kind != Object {
		return Value{}, &SyntaxError{Reason: "not a JSON object"}
	}
	return v, nil
}

// slabSize is the number of members in a slab, one allocation that many arrays and objects share.
const slabSize = 256

// maxMembers returns an upper bound for the members and elements in a JSON text: each follows a comma or an opening
// bracket. The bound is exact if no string contains these and no array or object is empty.
func maxMembers(text string) int {
	return strings.Count(text, ",") + strings.Count(text, "{") + strings.Count(text, "[")
}

// parser is a recursive descent parser. When an array or object closes, its members move from the stack to the slab.
type parser struct {
	text   string
	pos    int
	depth  int // number of levels that may still be opened
	values int // number of values that may still follow
	slab   []Member

	anyNumber bool // accept all numbers, because nobody computes with them
}

func (p *parser) fail(reason string) error { return &SyntaxError{Offset: p.pos, Reason: reason} }

func (p *parser) skipSpace() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, or NUL at the end. No JSON token begins with NUL.
func (p *parser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func (p *parser) value(open *stack) (Value, error) {
	if p.values--; p.values < 0 {
		return Value{}, p.fail("too many values")
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(open)
	case c == '[':
		return p.array(open)
	case c == '"':
		s, err := p.str()
		return Value{kind: String, text: s}, err
	case c == '-' || '0' <= c && c <= '9':
		return p.number()
	case c == 't':
		return p.literal("true", True)
	case c == 'f':
		return p.literal("false", False)
	case c == 'n':
		return p.literal("null", Null)
	case c == 0 && p.pos >= len(p.text):
		return Value{}, p.fail("unexpected end")
	case strings.HasPrefix(p.text[p.pos:], "\ufeff"):
		return Value{}, p.fail("byte order mark")
	}
	return Value{}, p.fail("not a JSON value")
}

func (p *parser) literal(word string, k Kind) (Value, error) {
	if !strings.HasPrefix(p.text[p.pos:], word) {
		return Value{}, p.fail("not a JSON value")
	}
	p.pos += len(word)
	return Value{kind: k}, nil
}

// settle moves the members of an array or object from the stack, where they begin at index start, to the slab.
func (p *parser) settle(open *stack, start int) []Member {
	n := open.n - start
	if len(p.slab) < n {
		p.slab = make([]Member, max(n, slabSize))
	}
	kids := p.slab[:n:n]
	p.slab = p.slab[n:]
	open.pop(kids, start)
	return kids
}

// enter steps over the opening bracket of an array or object.
func (p *parser) enter() error {
	if p.depth--; p.depth < 0 {
		return p.fail("nested too deep")
	}
	p.pos++
	p.skipSpace()
	return nil
}

// next steps over the comma between two members, or over the closing bracket. more reports whether a member follows.
func (p *parser) next(closing byte) (more bool, err error) {
	p.skipSpace()
	switch p.peek() {
	case ',':
		p.pos++
		p.skipSpace()
		return true, nil
	case closing:
		p.pos++
		p.depth++
		return false, nil
	}
	return false, p.fail("expected a comma or the end of the array or object")
}

func (p *parser) array(open *stack) (Value, error) {
	if err := p.enter(); err != nil {
		return Value{}, err
	}
	if p.peek() == ']' {
		p.pos++
		p.depth++
		return Value{kind: Array}, nil
	}
	start := open.n
	for {
		elem, err := p.value(open)
		if err != nil {
			return Value{}, err
		}
		open.push(Member{Value: elem})
		more, err := p.next(']')
		if err != nil {
			return Value{}, err
		}
		if !more {
			return Value{kind: Array, kids: p.settle(open, start)}, nil
		}
	}
}

func (p *parser) object(open *stack) (Value, error) {
	if err := p.enter(); err != nil {
		return Value{}, err
	}
	if p.peek() == '}' {
		p.pos++
		p.depth++
		return Value{kind: Object}, nil
	}
	start := open.n
	var seen map[string]struct{} // only for objects too large to scan
	for {
		keyPos := p.pos
		key, err := p.key()
		if err != nil {
			return Value{}, err
		}
		if seen, err = p.checkKey(key, open, start, seen, keyPos); err != nil {
			return Value{}, err
		}
		val, err := p.value(open)
		if err != nil {
			return Value{}, err
		}
		open.push(Member{key, val})
		more, err := p.next('}')
		if err != nil {
			return Value{}, err
		}
		if !more {
			return Value{kind: Object, kids: p.settle(open, start)}, nil
		}
	}
}

// key reads the key of a member and the colon after it.
func (p *parser) key() (string, error) {
	if p.peek() != '"' {
		return "", p.fail("expected a key")
	}
	key, err := p.str()
	if err != nil {
		return "", err
	}
	p.skipSpace()
	if p.peek() != ':' {
		return "", p.fail("expected a colon")
	}
	p.pos++
	p.skipSpace()
	return key, nil
}

// checkKey refuses a duplicate key, and "__proto__", which JavaScript peers would drop (AM-12). seen has the keys of an
// object too large to scan.
func (p *parser) checkKey(key string, open *stack, start int, seen map[string]struct{}, keyPos int) (map[string]struct{}, error) {
	const scan = 16 // below this number of members, comparing is cheaper than hashing
	duplicate := false
	if open.n-start < scan {
		duplicate = open.has(key, start)
	} else {
		if seen == nil {
			seen = open.keys(start)
		}
		_, duplicate = seen[key]
		seen[key] = struct{}{}
	}
	if duplicate {
		return seen, &SyntaxError{Offset: keyPos, Reason: "duplicate key"}
	}
	if key == "__proto__" {
		return seen, &SyntaxError{Offset: keyPos, Reason: "key __proto__"}
	}
	return seen, nil
}

// stack holds the members of the open arrays and objects. The first ones are in an array, which needs no allocation,
// because nothing keeps a slice of it.
type stack struct {
	n    int
	few  [24]Member
	more []Member // members that do not fit into few
}

func (s *stack) push(m Member) {
	if s.n < len(s.few) {
		s.few[s.n] = m
	} else {
		s.more = append(s.more, m)
	}
	s.n++
}

// has reports whether a member at or after start has the key.
func (s *stack) has(key string, start int) bool {
	for i := start; i < min(s.n, len(s.few)); i++ {
		if s.few[i].Key == key {
			return true
		}
	}
	for i := max(start-len(s.few), 0); i < len(s.more); i++ {
		if s.more[i].Key == key {
			return true
		}
	}
	return false
}

// keys returns the keys of the members at or after start.
func (s *stack) keys(start int) map[string]struct{} {
	keys := make(map[string]struct{}, 2*(s.n-start))
	for i := start; i < s.n; i++ {
		if i < len(s.few) {
			keys[s.few[i].Key] = struct{}{}
		} else {
			keys[s.more[i-len(s.few)].Key] = struct{}{}
		}
	}
	return keys
}

// pop removes the members at or after start, and copies them to dst.
func (s *stack) pop(dst []Member, start int) {
	if start < len(s.few) {
		n := copy(dst, s.few[start:min(s.n, len(s.few))])
		dst, s.n = dst[n:], start
	} else {
		s.n = start
	}
	kept := max(start-len(s.few), 0)
	copy(dst, s.more[min(kept, len(s.more)):])
	s.more = s.more[:min(kept, len(s.more))]
}
