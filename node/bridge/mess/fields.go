package mess

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/agentmesh/agentmesh/node/wire"
)

// fields reads the members of a map and remembers the first thing that is wrong. Null counts as absent (MESS-54).
type fields struct {
	v    wire.Value
	path string
	err  error
}

// in returns the fields of a map.
func in(v wire.Value, path string) *fields {
	f := &fields{v: v, path: path}
	if v.Kind() != wire.Object {
		f.err = bad(path, "must be a map")
	}
	return f
}

func (f *fields) fail(key, reason string) {
	if f.err == nil {
		f.err = bad(f.at(key), reason)
	}
}

func (f *fields) at(key string) string {
	switch {
	case key == "":
		return f.path
	case f.path == "":
		return key
	}
	return f.path + "." + key
}

func (f *fields) check(ok bool, key, reason string) {
	if !ok {
		f.fail(key, reason)
	}
}

// only refuses members of other names, where one that is misspelt would go unnoticed.
func (f *fields) only(keys ...string) {
	for _, m := range f.v.Members() {
		if slices.Contains(keys, m.Key) {
			continue
		}
		text := "unknown key" + quoted(m.Key)
		if near := wire.Near(m.Key, keys); near != "" {
			text += fmt.Sprintf(", did you mean %q?", near)
		}
		f.fail("", text)
	}
}

func (f *fields) get(key string) (wire.Value, bool) {
	v, ok := f.v.Get(key)
	return v, ok && !v.IsNull()
}

// text reads an optional text of at most max bytes.
func (f *fields) text(key string, max int) string {
	v, ok := f.get(key)
	if !ok {
		return ""
	}
	s, ok := v.Str()
	f.check(ok, key, "must be a text")
	f.check(len(s) <= max, key, fmt.Sprintf("must have at most %d bytes", max))
	f.check(!controls(s), key, "must not hold control characters")
	return s
}

// need is text for a field that must be there and not empty.
func (f *fields) need(key string, max int) string {
	s := f.text(key, max)
	f.check(strings.TrimSpace(s) != "", key, "is required")
	return s
}

// oneOf reads an optional word of a list; def where it is absent.
func (f *fields) oneOf(key, def string, words ...string) string {
	v, ok := f.get(key)
	if !ok {
		return def
	}
	s, _ := v.Str()
	f.check(slices.Contains(words, s), key, "must be one of "+strings.Join(words, ", "))
	return s
}

func (f *fields) boolean(key string) (value, there bool) {
	v, ok := f.get(key)
	if !ok {
		return false, false
	}
	b, isBool := v.Boolean()
	f.check(isBool, key, "must be true or false")
	return b, true
}

// integer reads an optional whole number within bounds.
func (f *fields) integer(key string, low, high int64) (int64, bool) {
	v, ok := f.get(key)
	if !ok {
		return 0, false
	}
	n, ok := whole(v)
	f.check(ok && low <= n && n <= high, key, fmt.Sprintf("must be a whole number from %d to %d", low, high))
	return n, true
}

// whole reads a number token without fraction.
func whole(v wire.Value) (n int64, ok bool) {
	text, ok := v.Num()
	if !ok || len(text) > 17 || strings.Trim(text, "-0123456789") != "" {
		return 0, false
	}
	_, err := fmt.Sscan(text, &n)
	return n, err == nil
}

// number reads an optional number of any kind.
func (f *fields) number(key string) {
	v, ok := f.get(key)
	if ok {
		_, ok = v.Num()
		f.check(ok, key, "must be a number")
	}
}

// list reads an optional list of at most max elements.
func (f *fields) list(key string, max int) []wire.Value {
	v, ok := f.get(key)
	if !ok {
		return nil
	}
	f.check(v.Kind() == wire.Array, key, "must be a list")
	f.check(v.Len() <= max, key, fmt.Sprintf("must have at most %d elements", max))
	return slices.Collect(v.Elems())
}

// texts reads an optional list of texts.
func (f *fields) texts(key string, max int) []string {
	var out []string
	for i, e := range f.list(key, max) {
		s, ok := e.Str()
		f.check(ok && s != "" && len(s) <= maxName && !controls(s), fmt.Sprintf("%s[%d]", key, i), "must be a short text")
		out = append(out, s)
	}
	return out
}

// sub reads an optional map; nil where it is absent.
func (f *fields) sub(key string) *fields {
	v, ok := f.get(key)
	if !ok {
		return nil
	}
	g := in(v, f.at(key))
	f.join(g)
	return g
}

func (f *fields) join(g *fields) {
	if f.err == nil && g != nil {
		f.err = g.err
	}
}

// refs reads re: a text or a list of texts.
func (f *fields) refs(key string, required bool) []string {
	v, ok := f.get(key)
	if !ok {
		f.check(!required, key, "is required")
		return nil
	}
	if s, ok := v.Str(); ok {
		f.check(validRef(s), key, "must be a reference")
		return []string{s}
	}
	out := f.texts(key, 100)
	f.check(len(out) > 0, key, "must be a reference or a list of them")
	return out
}

const (
	maxName   = 512
	maxID     = 128
	maxProse  = 16 << 10
	maxIntent = 16 << 10
)

// validRef says whether s can name anything: refs, client ids, message refs, "last", with or without namespace.
func validRef(s string) bool { return s != "" && len(s) <= maxName && !controls(s) }

// controls says whether s holds control characters beyond tab, LF and CR (MESS-12).
func controls(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r'
	})
}
