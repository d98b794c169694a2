package signing

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// appendPython writes a number token as Python's json module writes it after reading it (MS-13): integers of any size
// verbatim, −0 as 0; everything else as the repr of the nearest double: the shortest digits that round-trip, at least
// one decimal, exponent form below 1e-4 and from 1e16 on with a sign and two digits. A token that overflows, which the
// caller has refused, stays as it is.
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
		return strconv.AppendFloat(dst, x, 'e', -1, 64) // Go's exponents have a sign and two digits, too
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, x, 'f', -1, 64)
	if slices.Contains(dst[start:], '.') {
		return dst
	}
	return append(dst, '.', '0')
}
