package message

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"unicode"

	"github.com/agentmesh/agentmesh/node/wire"
)

// StreamText returns the payload of a stream in the form that can be scanned for personal data: the printable text in
// binary data takes the place of the data.
func StreamText(p wire.Value) wire.Value {
	raw, err := base64.StdEncoding.DecodeString(p.GetStr("data"))
	if p.GetStr("type") != "binary" || err != nil {
		return p
	}
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\n'
	}, strings.ToValidUTF8(string(raw), "\n"))
	return p.With("data", wire.Text(text))
}

// Checksum returns the checksum for the end of a stream.
func Checksum(sum [32]byte) string { return "sha256:" + hex.EncodeToString(sum[:]) }
