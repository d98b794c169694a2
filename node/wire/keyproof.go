package wire

import (
	"encoding/hex"
	"strings"
	"time"
)

// KeyProof is the content of an AgentMesh-Key-Proof header (AM-62).
type KeyProof struct {
	Time      time.Time
	Stamp     string // the time as written, which the proof signs
	Signature string
}

// KeyProofText returns the lines that a key proof signs (AM-62). path is the path of the request as sent, base is the
// directory's base URL without a trailing slash, and digest is the SHA-256 of the card's JCS form.
func KeyProofText(method, path, base, stamp string, digest [32]byte) []byte {
	lines := []string{"agentmesh-key-proof-v1", method + " " + path, base, stamp, hex.EncodeToString(digest[:]), ""}
	return []byte(strings.Join(lines, "\n"))
}

// Header returns the proof as a header value.
func (p KeyProof) Header() string { return "t=" + p.Stamp + ", sig=" + p.Signature }

// ParseKeyProof reads a header value.
func ParseKeyProof(header string) (KeyProof, bool) {
	stamp, sig, ok := strings.Cut(header, ", sig=")
	stamp, hasTime := strings.CutPrefix(stamp, "t=")
	at, valid := ParseTime(stamp)
	if !ok || !hasTime || !valid || sig == "" {
		return KeyProof{}, false
	}
	return KeyProof{Time: at, Stamp: stamp, Signature: sig}, true
}
