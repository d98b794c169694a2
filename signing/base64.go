package signing

import (
	"encoding/base64"
	"strings"
)

// decodeBase64 reads base64 in the forms that AM-17 accepts: the standard or the URL alphabet but not both, with or
// without padding, with zero trailing bits, and without white space. [base64.Encoding.Strict] alone would skip CR and
// LF. Padding must have the right length.
func decodeBase64(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	alphabet := base64.RawStdEncoding
	if strings.ContainsAny(s, "-_") {
		alphabet = base64.RawURLEncoding
	}
	if body := strings.TrimRight(s, "="); len(body) < len(s) {
		if len(s)%4 != 0 || len(s)-len(body) > 2 {
			return nil, false
		}
		s = body
	}
	data, err := alphabet.Strict().DecodeString(s)
	return data, err == nil
}

func encodeBase64(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
