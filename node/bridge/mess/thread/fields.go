package thread

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Fields reads the members of a map and keeps the first fault in the map or in a map inside it. A member that is null
// counts as absent (MESS-54).
type Fields struct {
	Value wire.Value
	path  string
	fault *error
}

// NewFields returns the fields of a map.
func NewFields(v wire.Value, path string) *Fields {
	return (&Fields{fault: new(error)}).In(v, path)
}

// In returns the fields of v, a map inside the map of f. key is the path of v within the map of f.
func (f *Fields) In(v wire.Value, key string) *Fields {
	g := &Fields{Value: v, path: f.Path(key), fault: f.fault}
	g.Check(v.Kind() == wire.Object, "", "must be a map")
	return g
}

// Err returns the first fault, or nil.
func (f *Fields) Err() error { return *f.fault }

// fail records a fault, unless there is one already.
func (f *Fields) fail(key, reason string) {
	if *f.fault == nil {
		*f.fault = Bad(f.Path(key), reason)
	}
}

// Path returns the path of a member for refusals.
func (f *Fields) Path(key string) string {
	switch {
	case key == "":
		return f.path
	case f.path == "":
		return key
	}
	return f.path + "." + key
}

// Check records a fault of a member unless ok is true.
func (f *Fields) Check(ok bool, key, reason string) {
	if !ok {
		f.fail(key, reason)
	}
}

// Get returns a member. The result is false if the member is absent or null.
func (f *Fields) Get(key string) (wire.Value, bool) {
	v, ok := f.Value.Get(key)
	return v, ok && !v.IsNull()
}

// Text reads an optional text of at most max bytes.
func (f *Fields) Text(key string, max int) string {
	v, ok := f.Get(key)
	if !ok {
		return ""
	}
	s, ok := v.Str()
	f.Check(ok, key, "must be a text")
	f.Check(len(s) <= max, key, fmt.Sprintf("must have at most %d bytes", max))
	f.Check(!hasControls(s), key, "must not hold control characters")
	return s
}

// Required reads a text that must be present and not blank.
func (f *Fields) Required(key string, max int) string {
	s := f.Text(key, max)
	f.Check(strings.TrimSpace(s) != "", key, "is required")
	return s
}

// OneOf reads an optional word from a list, or returns def if it is absent.
func (f *Fields) OneOf(key, def string, words ...string) string {
	v, ok := f.Get(key)
	if !ok {
		return def
	}
	s, _ := v.Str()
	f.Check(slices.Contains(words, s), key, "must be one of "+strings.Join(words, ", "))
	return s
}

// Boolean reads an optional boolean.
func (f *Fields) Boolean(key string) (value, present bool) {
	v, ok := f.Get(key)
	if !ok {
		return false, false
	}
	b, isBool := v.Boolean()
	f.Check(isBool, key, "must be true or false")
	return b, true
}

// integer reads an optional whole number.
func (f *Fields) integer(key string, low, high int64) (value int64, present bool) {
	v, ok := f.Get(key)
	if !ok {
		return 0, false
	}
	n, ok := ReadWhole(v)
	f.Check(ok && low <= n && n <= high, key, fmt.Sprintf("must be a whole number from %d to %d", low, high))
	return n, true
}

// ReadWhole reads a number without a fraction.
func ReadWhole(v wire.Value) (n int64, ok bool) {
	text, ok := v.Num()
	n, err := strconv.ParseInt(text, 10, 64)
	return n, ok && err == nil
}

// checkNumber checks that an optional member is a number.
func (f *Fields) checkNumber(key string) {
	v, ok := f.Get(key)
	if ok {
		_, ok = v.Num()
		f.Check(ok, key, "must be a number")
	}
}

// List reads an optional list of at most max elements.
func (f *Fields) List(key string, max int) []wire.Value {
	v, ok := f.Get(key)
	if !ok {
		return nil
	}
	f.Check(v.Kind() == wire.Array, key, "must be a list")
	f.Check(v.Len() <= max, key, fmt.Sprintf("must have at most %d elements", max))
	return slices.Collect(v.Elems())
}

// Texts reads an optional list of texts.
func (f *Fields) Texts(key string, max int) []string {
	var out []string
	for i, e := range f.List(key, max) {
		s, ok := e.Str()
		f.Check(ok && s != "" && len(s) <= maxName && !hasControls(s), fmt.Sprintf("%s[%d]", key, i), "must be a short text")
		out = append(out, s)
	}
	return out
}

// Sub returns the fields of an optional map, or nil if it is absent.
func (f *Fields) Sub(key string) *Fields {
	v, ok := f.Get(key)
	if !ok {
		return nil
	}
	return f.In(v, key)
}

// Values of the parameter required of [Fields.Refs] and [Fields.Reason].
const (
	Optional  = false
	Mandatory = true
)

// Refs reads one reference or a list of references.
func (f *Fields) Refs(key string, required bool) []string {
	v, ok := f.Get(key)
	if !ok {
		f.Check(!required, key, "is required")
		return nil
	}
	if s, ok := v.Str(); ok {
		f.Check(isReference(s), key, "must be a reference")
		return []string{s}
	}
	out := f.Texts(key, 100)
	f.Check(len(out) > 0, key, "must be a reference or a list of them")
	return out
}

// Bounds of texts, in bytes.
const (
	maxName   = 512
	MaxID     = 128
	MaxProse  = 16 << 10
	maxIntent = 16 << 10
)

// isReference reports whether s may be one of the references of MESS-6. They have no common form.
func isReference(s string) bool { return s != "" && len(s) <= maxName && !hasControls(s) }

// hasControls reports whether s has control characters other than tab, LF and CR (MESS-12).
func hasControls(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r'
	})
}
