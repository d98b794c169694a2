package signing

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// appendPython appends a number token as the json module of Python writes the number after reading it (MS-13). Integers
// of any size stay unchanged, except that −0 becomes 0. Any other number becomes the repr of the nearest double: the
// shortest digits that round-trip, with at least one decimal; below 1e-4 and from 1e16 on with an exponent that has a
// sign and at least two digits. A token that overflows stays unchanged; wire.Parse refuses it.
func appendPython(dst []byte, token string) []byte {
	if !strings.ContainsAny(token, ".eE") {
		if token == "-0" {
			return append(dst, '0')
		}
		return append(dst, token...)
	}
	x, err := strconv.ParseFloat(token, 64)
	if err != nil {
		return append(dst, token...)
	}
	abs := math.Abs(x)
	if abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(dst, x, 'e', -1, 64) // exponents of Go also have a sign and at least two digits
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, x, 'f', -1, 64)
	if slices.Contains(dst[start:], '.') {
		return dst
	}
	return append(dst, '.', '0')
}
