package signing

import (
	"encoding/base64"
	"strings"
)

// decodeBase64 reads base64 as AM-17 accepts it: the standard or the URL alphabet but not both, with or without
// padding, without white space, CR or LF (which [base64.Encoding.Strict] alone would skip), and with zero trailing
// bits. Padding must have the right length, so each value has exactly four spellings.
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
