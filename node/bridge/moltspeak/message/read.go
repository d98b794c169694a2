package message

import (
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// reader reads the members of one object and keeps the first error. The methods need, text, name, oneOf, texts and whole
// read a required member, and those whose names begin with opt an optional one. null counts as missing.
type reader struct {
	v     wire.Value
	path  string // "p." inside payloads
	bad   Code   // for a wrong type: E_SCHEMA outside payloads, E_INVALID_PARAM inside (MS-31)
	err   *Error
	outer *reader // the reader of the enclosing object, which keeps the error; nil if this one keeps it
}

// at returns a reader of v, an object in the member key. It keeps its error in r.
func (r *reader) at(key string, v wire.Value) *reader {
	return &reader{v: v, path: r.path + key + ".", bad: r.bad, outer: r}
}

func (r *reader) fail(c Code, field, fix string) {
	path := r.path
	for r.outer != nil {
		r = r.outer
	}
	if r.err == nil {
		r.err = FailAt(c, path+field, fix)
	}
}

func (r *reader) check(ok bool, field, fix string) {
	if !ok {
		r.fail(r.bad, field, fix)
	}
}

func (r *reader) has(key string) bool {
	m, ok := r.v.Get(key)
	return ok && !m.IsNull()
}

// need returns a required member of this kind.
func (r *reader) need(key string, kind wire.Kind) wire.Value {
	m, ok := r.v.Get(key)
	switch {
	case !ok || m.IsNull():
		r.fail(CodeMissingField, key, "is required")
	case m.Kind() != kind:
		r.fail(r.bad, key, "must be "+withArticle(kind))
		return wire.Value{}
	}
	return m
}

func (r *reader) opt(key string, kind wire.Kind) (wire.Value, bool) {
	m, ok := r.v.Get(key)
	if !ok || m.IsNull() {
		return wire.Value{}, false
	}
	if m.Kind() != kind {
		r.fail(r.bad, key, "must be "+withArticle(kind))
		return wire.Value{}, false
	}
	return m, true
}

func withArticle(k wire.Kind) string {
	if k == wire.Array || k == wire.Object {
		return "an " + k.String()
	}
	return "a " + k.String()
}

func (r *reader) text(key string) string {
	s, _ := r.need(key, wire.String).Str()
	return s
}

func (r *reader) optText(key string) string {
	m, _ := r.opt(key, wire.String)
	s, _ := m.Str()
	return s
}

// name returns a text of 1 to MaxText bytes.
func (r *reader) name(key string) string {
	s := r.text(key)
	r.check(s != "" && len(s) <= MaxText, key, "must have 1 to 256 bytes")
	return s
}

func (r *reader) oneOf(key string, allowed ...string) string {
	s := r.text(key)
	r.check(slices.Contains(allowed, s), key, "is not one of the values of the protocol")
	return s
}

func (r *reader) optOneOf(key string, allowed ...string) {
	if r.has(key) {
		r.oneOf(key, allowed...)
	}
}

func (r *reader) texts(key string) []string {
	r.need(key, wire.Array)
	return r.optTexts(key)
}

func (r *reader) optTexts(key string) []string {
	m, ok := r.opt(key, wire.Array)
	if !ok {
		return nil
	}
	r.check(m.Len() <= MaxList, key, "has too many entries")
	out := make([]string, 0, min(m.Len(), MaxList))
	for e := range m.Elems() {
		s, isText := e.Str()
		r.check(isText && len(s) <= MaxText, key, "must be an array of texts")
		if len(out) < MaxList {
			out = append(out, s)
		}
	}
	return out
}

func (r *reader) optWhole(key string) (int64, bool) {
	if !r.has(key) {
		return 0, false
	}
	n, ok := integer(r.v, key)
	r.check(ok, key, "must be an integer")
	return n, ok
}

func (r *reader) whole(key string) int64 {
	n, ok := r.optWhole(key)
	if !ok {
		r.fail(CodeMissingField, key, "is required")
	}
	return n
}

// optMillis returns a time, which the message has as Unix milliseconds.
func (r *reader) optMillis(key string) time.Time {
	n, ok := r.optWhole(key)
	if !ok {
		return time.Time{}
	}
	r.check(0 < n && n < maxMillis, key, "must be Unix milliseconds")
	return time.UnixMilli(n).UTC()
}

func (r *reader) optFlag(key string) bool {
	m, ok := r.v.Get(key)
	if !ok || m.IsNull() {
		return false
	}
	b, isBool := m.Boolean()
	r.check(isBool, key, "must be a boolean")
	return b
}

// maxMillis is the end of the year 9999. Times must be before it, so that no computation with a time overflows.
const maxMillis = 253402300800000

// integer returns an integer member. It reports false if the member is not a number, does not fit into 64 bits, or is
// written with a decimal point or an exponent.
func integer(v wire.Value, key string) (int64, bool) {
	m, _ := v.Get(key)
	token, ok := m.Num()
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(token, 10, 64)
	return n, err == nil
}

const (
	MaxText = 256 // bytes of a short text, such as a name
	MaxList = 100 // entries of a list
)
