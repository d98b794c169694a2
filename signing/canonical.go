package signing

import (
	"cmp"
	"crypto/sha256"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Canonical returns the encoding of v in the form f, such as [JCS].
func Canonical(v wire.Value, f Form) []byte {
	const usual = 1 << 10 // bytes; most messages fit
	return AppendCanonical(make([]byte, 0, usual), v, f)
}

// Digest returns the SHA-256 of the JCS form of v.
func Digest(v wire.Value) [32]byte { return sha256.Sum256(Canonical(v, JCS)) }

// AppendCanonical appends the encoding of v in the form f to dst. Numbers must be finite, as [wire.Parse] guarantees.
// What is verified or signed in the forms [JCS], [ES] and [Python] must have no other numbers than [wire.IsSafeNumber]
// permits.
func AppendCanonical(dst []byte, v wire.Value, f Form) []byte {
	switch v.Kind() {
	case wire.Number:
		token, _ := v.Num()
		if f == JCS || f == ES {
			return appendNumber(dst, token)
		}
		if f == Python {
			return appendPython(dst, token)
		}
		return append(dst, token...)
	case wire.String:
		s, _ := v.Str()
		return appendString(dst, s, f)
	case wire.Array:
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendCanonical(dst, v.At(i), f)
		}
		return append(dst, ']')
	case wire.Object:
		return appendObject(dst, v.Members(), f)
	}
	return v.AppendJSON(dst)
}

func appendObject(dst []byte, members []wire.Member, f Form) []byte {
	compare := keyOrder(f)
	dst = append(dst, '{')
	if inOrder(members, compare) {
		for i := range members {
			dst = appendMember(dst, &members[i], i == 0, f)
		}
		return append(dst, '}')
	}
	var few [16]*wire.Member // enough for most objects, so that sorting needs no allocation
	order := few[:0]
	for i := range members {
		order = append(order, &members[i])
	}
	slices.SortFunc(order, func(a, b *wire.Member) int { return compare(a.Key, b.Key) })
	for i, m := range order {
		dst = appendMember(dst, m, i == 0, f)
	}
	return append(dst, '}')
}

func inOrder(members []wire.Member, compare func(a, b string) int) bool {
	for i := 1; i < len(members); i++ {
		if compare(members[i-1].Key, members[i].Key) > 0 {
			return false
		}
	}
	return true
}

func appendMember(dst []byte, m *wire.Member, first bool, f Form) []byte {
	if !first {
		dst = append(dst, ',')
	}
	dst = append(appendString(dst, m.Key, f), ':')
	return AppendCanonical(dst, m.Value, f)
}

// keyOrder returns the comparison by which f sorts the keys of an object.
func keyOrder(f Form) func(a, b string) int {
	switch f {
	case JCS:
		return compareUTF16
	case ES:
		return compareES
	}
	return strings.Compare // the order of UTF-8 bytes is the order of code points
}

// compareUTF16 compares two texts by their UTF-16 code units (RFC 8785 §3.2.3). UTF-8 bytes have the same order with
// one exception: U+E000 to U+FFFF, whose first byte is 0xEE or 0xEF, follow the surrogates, which encode all code
// points above U+FFFF.
func compareUTF16(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0) {
			return int(y) - int(x)
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// compareES compares two keys in the order in which ECMAScript enumerates properties that were added in UTF-16 order:
// array indices come first, in numeric order.
func compareES(a, b string) int {
	x, isIndexA := arrayIndex(a)
	y, isIndexB := arrayIndex(b)
	switch {
	case isIndexA && isIndexB:
		return cmp.Compare(x, y)
	case isIndexA:
		return -1
	case isIndexB:
		return 1
	}
	return compareUTF16(a, b)
}

// arrayIndex reads an array index of ECMA-262 §6.1.7, which is the canonical decimal form of an integer up to 2^32−2.
func arrayIndex(key string) (int64, bool) {
	if key == "" || len(key) > len("4294967294") || key[0] == '0' && len(key) > 1 {
		return 0, false
	}
	n := int64(0)
	for i := range len(key) {
		if key[i] < '0' || key[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(key[i]-'0')
	}
	return n, n < math.MaxUint32
}

// appendNumber appends a number token as ECMAScript writes the double with this value (RFC 8785 §3.2.2.3).
func appendNumber(dst []byte, token string) []byte {
	if isShortInteger(token) {
		return append(dst, token...)
	}
	f, err := strconv.ParseFloat(token, 64)
	if err != nil || f == 0 {
		return append(dst, '0') // −0 becomes 0; wire.Parse refuses a number that overflows
	}
	if abs := math.Abs(f); 1e-6 <= abs && abs < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') { // e-07 becomes e-7
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// isShortInteger reports whether token is an integer that ECMAScript writes in the same way: at most fifteen digits,
// which a double holds exactly, and not −0.
func isShortInteger(token string) bool {
	digits := strings.TrimPrefix(token, "-")
	if len(digits) > 15 || digits == "0" && len(token) > 1 {
		return false
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return false
		}
	}
	return true
}

// appendString appends s as a JSON string with the escapes of RFC 8785 and of the form f.
func appendString(dst []byte, s string, f Form) []byte {
	if f != ASCII && f != HTML && f != Python {
		return wire.AppendString(dst, s)
	}
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[i:])
		}
		if needsEscape(f, r) {
			dst = appendPiece(dst, s[start:i])
			dst = appendEscape(dst, r)
			start = i + size
		}
		i += size
	}
	dst = appendPiece(dst, s[start:])
	return append(dst, '"')
}

// needsEscape reports whether f escapes r although RFC 8785 does not. DEL is ASCII, but Python writes it as \u007f.
func needsEscape(f Form, r rune) bool {
	if f != HTML {
		return r > '~'
	}
	return r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029'
}

// appendPiece appends what [wire.AppendString] writes between the quotes.
func appendPiece(dst []byte, s string) []byte {
	if s == "" {
		return dst
	}
	n := len(dst)
	dst = wire.AppendString(dst, s)
	return append(dst[:n], dst[n+1:len(dst)-1]...)
}

func appendEscape(dst []byte, r rune) []byte {
	if r > 0xFFFF {
		high, low := utf16.EncodeRune(r)
		return appendUnit(appendUnit(dst, high), low)
	}
	return appendUnit(dst, r)
}

func appendUnit(dst []byte, u rune) []byte {
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15])
}
