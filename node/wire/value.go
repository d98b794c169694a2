package wire

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind is the JSON type of a [Value].
type Kind uint8

// The kinds. The zero [Value] is Null.
const (
	Null Kind = iota
	False
	True
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"null", "boolean", "boolean", "number", "string", "array", "object"}

func (k Kind) String() string { return kindNames[k] }

// Value is an immutable JSON value as it was received: object members keep their order, and numbers keep their token.
// The zero Value is null. A Value may share memory with the text that it was parsed from.
type Value struct {
	kind Kind
	text string   // String: the decoded text; Number: the token as written
	kids []Member // Object: members in order; Array: elements, without keys
}

// Member is a name and its value in an object.
type Member struct {
	Key   string
	Value Value
}

// Text returns a string value. Bytes that are not UTF-8 become U+FFFD, so that every value can be read again.
func Text(s string) Value { return Value{kind: String, text: strings.ToValidUTF8(s, "\ufffd")} }

// Int returns a number value.
func Int(n int64) Value { return Value{kind: Number, text: strconv.FormatInt(n, 10)} }

// Bool returns a boolean value.
func Bool(b bool) Value {
	if b {
		return Value{kind: True}
	}
	return Value{kind: False}
}

// Field returns a member for [Obj].
func Field(key string, v Value) Member { return Member{Key: key, Value: v} }

// TextField returns a member for [Obj] whose value is a text.
func TextField(key, text string) Member { return Member{Key: key, Value: Text(text)} }

// Obj returns an object with these members in this order. Keys must be unique UTF-8.
func Obj(members ...Member) Value { return Value{kind: Object, kids: slices.Clone(members)} }

// Arr returns an array.
func Arr(elems ...Value) Value {
	kids := make([]Member, len(elems))
	for i, e := range elems {
		kids[i].Value = e
	}
	return Value{kind: Array, kids: kids}
}

// Texts returns an array of strings.
func Texts[S ~string](list []S) Value {
	kids := make([]Member, len(list))
	for i, s := range list {
		kids[i].Value = Text(string(s))
	}
	return Value{kind: Array, kids: kids}
}

// Kind returns the type of v.
func (v Value) Kind() Kind { return v.kind }

// IsNull reports whether v is null.
func (v Value) IsNull() bool { return v.kind == Null }

// Str returns the text of a string. ok is false for any other kind.
func (v Value) Str() (text string, ok bool) { return v.text, v.kind == String }

// Num returns the token of a number, as written. ok is false for any other kind.
func (v Value) Num() (token string, ok bool) { return v.text, v.kind == Number }

// Boolean returns the value of a boolean. ok is false for any other kind.
func (v Value) Boolean() (b, ok bool) { return v.kind == True, v.kind == True || v.kind == False }

// Len returns the number of members or elements; 0 for other kinds.
func (v Value) Len() int { return len(v.kids) }

// At returns element i of an array, or the value of member i of an object. It panics if i is out of range.
func (v Value) At(i int) Value { return v.kids[i].Value }

// Elems yields the elements of an array, and nothing for any other kind.
func (v Value) Elems() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.kind != Array {
			return
		}
		for i := range v.kids {
			if !yield(v.kids[i].Value) {
				return
			}
		}
	}
}

// Members returns the members of an object in order, or nil for any other kind. The caller must not change them.
func (v Value) Members() []Member {
	if v.kind != Object {
		return nil
	}
	return v.kids
}

// Get returns the member named key. Keys are case-sensitive.
func (v Value) Get(key string) (Value, bool) {
	for i := range v.Members() {
		if v.kids[i].Key == key {
			return v.kids[i].Value, true
		}
	}
	return Value{}, false
}

// GetStr returns the string member named key, or "" if it is absent or not a string. Inlined in 730 places, it made the
// program 300 KB larger.
//
//go:noinline
func (v Value) GetStr(key string) string {
	m, _ := v.Get(key)
	if m.kind != String {
		return ""
	}
	return m.text
}

// GetTexts returns the strings in the list named key, without the other elements.
func (v Value) GetTexts(key string) (texts []string) {
	list, _ := v.Get(key)
	for e := range list.Elems() {
		if e.kind == String {
			texts = append(texts, e.text)
		}
	}
	return texts
}

// With returns a copy of the object v with the value val for key, in the old place of key or at the end.
//
//go:noinline
func (v Value) With(key string, val Value) Value {
	kids := append(make([]Member, 0, v.Len()+1), v.Members()...)
	for i := range kids {
		if kids[i].Key == key {
			kids[i].Value = val
			return Value{kind: Object, kids: kids}
		}
	}
	return Value{kind: Object, kids: append(kids, Member{key, val})}
}

// WithOptional works like With for a text, but returns v itself if the text is empty.
func (v Value) WithOptional(key, text string) Value {
	if text == "" {
		return v
	}
	return v.With(key, Text(text))
}

// Without returns a copy of the object v without the members named by keys.
func (v Value) Without(keys ...string) Value {
	all := v.Members()
	if last := len(all) - 1; last >= 0 && len(keys) == 1 && all[last].Key == keys[0] { // the usual case: the signature of a message
		return Value{kind: Object, kids: all[:last:last]}
	}
	kids := make([]Member, 0, len(all))
	for _, m := range all {
		if !slices.Contains(keys, m.Key) {
			kids = append(kids, m)
		}
	}
	return Value{kind: Object, kids: kids}
}

// AppendJSON appends v without white space, with the received order of members and number tokens.
func (v Value) AppendJSON(dst []byte) []byte {
	switch v.kind {
	case Null:
		return append(dst, "null"...)
	case False:
		return append(dst, "false"...)
	case True:
		return append(dst, "true"...)
	case Number:
		return append(dst, v.text...)
	case String:
		return AppendString(dst, v.text)
	}
	opening, closing := byte('['), byte(']')
	if v.kind == Object {
		opening, closing = '{', '}'
	}
	dst = append(dst, opening)
	for i := range v.kids {
		if i > 0 {
			dst = append(dst, ',')
		}
		if v.kind == Object {
			dst = append(AppendString(dst, v.kids[i].Key), ':')
		}
		dst = v.kids[i].Value.AppendJSON(dst)
	}
	return append(dst, closing)
}

// AppendString appends s as a JSON string with only the escapes of RFC 8785 §3.2.2.2: short ones for \b \t \n \f \r \"
// \\, and lower-case \u00xx for the other control characters.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if plain[c] || c >= utf8.RuneSelf {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// JSON returns v as AppendJSON writes it, with spare capacity for a line end.
func (v Value) JSON() []byte { return v.AppendJSON(make([]byte, 0, v.size()+1)) }

// size returns an upper bound for the bytes that AppendJSON writes if no string needs escapes.
func (v Value) size() int {
	n := len(`false`)
	if v.kind == Number || v.kind == String {
		n = len(v.text) + len(`""`)
	}
	for i := range v.kids {
		n += len(v.kids[i].Key) + len(`"":,`) + v.kids[i].Value.size()
	}
	return n
}

// MarshalJSON implements [json.Marshaler]. The encoder of the standard library may escape the result again.
func (v Value) MarshalJSON() ([]byte, error) { return v.JSON(), nil }

// UnmarshalJSON implements [json.Unmarshaler] with the strict reader.
func (v *Value) UnmarshalJSON(data []byte) error {
	parsed, err := Parse(data)
	if err != nil {
		return err
	}
	*v = parsed
	return nil
}

// MustMarshal is [json.Marshal] for a value whose fields can all be encoded. It panics if one cannot.
func MustMarshal(x any) []byte {
	data, err := json.Marshal(x)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", x, err))
	}
	return data
}

// ValueOf converts a value that [json.Marshal] can encode.
func ValueOf(x any) (Value, error) {
	data, err := json.Marshal(x)
	if err != nil {
		return Value{}, fmt.Errorf("convert to JSON: %w", err)
	}
	return Parse(data)
}
