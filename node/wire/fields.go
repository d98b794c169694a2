package wire

import (
	"slices"
	"unicode/utf8"
)

const badID = "must start with the prefix of its kind, followed by 1 to 128 of A-Z a-z 0-9 . _ -"

// fields reads the members of an object and keeps the first error, so that a schema can be written as a list of reads.
type fields struct {
	v    Value
	path string // prefix of field names in errors, for example "payload."
	err  *FieldError
}

func (f *fields) fail(field, reason string) {
	if f.err == nil {
		f.err = &FieldError{Field: f.path + field, Reason: reason}
	}
}

func (f *fields) check(ok bool, field, reason string) {
	if !ok {
		f.fail(field, reason)
	}
}

func (f *fields) result() error {
	if f.err != nil {
		return f.err
	}
	return nil
}

// get returns a required member, which must have the kind k.
func (f *fields) get(key string, k Kind, reason string) Value {
	m, ok := f.v.Get(key)
	if !ok {
		f.fail(key, "is missing")
	} else if m.kind != k {
		f.fail(key, reason)
		return Value{}
	}
	return m
}

func (f *fields) text(key string) string  { return f.get(key, String, "must be a string").text }
func (f *fields) object(key string) Value { return f.get(key, Object, "must be an object") }
func (f *fields) array(key string) Value  { return f.get(key, Array, "must be an array") }

// sub returns the fields of a required member that is an object. The caller must pass the result to join.
func (f *fields) sub(key string) *fields {
	return &fields{v: f.object(key), path: f.path + key + "."}
}

// join takes over the error of sub.
func (f *fields) join(sub *fields) {
	if f.err == nil {
		f.err = sub.err
	}
}

// opt returns an optional member. null counts as absent (AM-69).
func (f *fields) opt(key string, k Kind, reason string) (Value, bool) {
	m, ok := f.v.Get(key)
	if !ok || m.IsNull() {
		return Value{}, false
	}
	if m.kind != k {
		f.fail(key, reason)
		return Value{}, false
	}
	return m, true
}

func (f *fields) optText(key string) string {
	m, _ := f.opt(key, String, "must be a string")
	return m.text
}

func (f *fields) optBool(key string) bool {
	m, ok := f.v.Get(key)
	if !ok || m.IsNull() {
		return false
	}
	b, isBool := m.Boolean()
	f.check(isBool, key, "must be a boolean")
	return b
}

// oneOf returns an optional string, which must be one of allowed, or "" if it is absent.
func (f *fields) oneOf(key, reason string, allowed ...string) string {
	m, ok := f.opt(key, String, reason)
	if ok {
		f.check(slices.Contains(allowed, m.text), key, reason)
	}
	return m.text
}

// texts returns the elements of a list, which must be strings.
func (f *fields) texts(key string, list Value) []string {
	out := make([]string, 0, list.Len())
	for e := range list.Elems() {
		s, ok := e.Str()
		f.check(ok, key, "must be an array of strings")
		out = append(out, s)
	}
	return out
}

// version checks the member agentmesh, the version of the protocol (AM-3).
func (f *fields) version() {
	f.check(validVersion(f.text("agentmesh")), "agentmesh", "must be 0.1.<n>")
}

// length checks that s has between low and high characters.
func (f *fields) length(s, key string, low, high int, reason string) {
	n := utf8.RuneCountInString(s)
	f.check(low <= n && n <= high, key, reason)
}
