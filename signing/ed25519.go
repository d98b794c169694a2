package signing

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/pem"
	"strings"
	"time"

	"filippo.io/edwards25519"
)

const pemBegin = "-----BEGIN PUBLIC KEY-----"

// spkiPrefix is an Ed25519 SubjectPublicKeyInfo without its point (RFC 8410 §4).
var spkiPrefix = []byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00}

// sshPrefix is an ssh-ed25519 key blob without its point (RFC 8709 §4).
const sshPrefix = "\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"

type ed25519Scheme struct{ key verifyKey }

func newEd25519(point []byte) (*PublicKey, error) {
	if len(point) != ed25519.PublicKeySize {
		return nil, refuse("an Ed25519 key has 32 bytes")
	}
	key, reason := newVerifyKey(point)
	if reason != "" {
		return nil, refuse(reason)
	}
	return &PublicKey{kind: KindEd25519, canonical: bytes.Clone(point), scheme: ed25519Scheme{key}}, nil
}

// pointFault returns why an encoded point cannot be a key, or "" if it can (AM-8). With a key of low order, one fixed
// signature verifies for every message, and crypto/ed25519 accepts such keys.
func pointFault(point []byte) string {
	p, err := new(edwards25519.Point).SetBytes(point)
	if err != nil {
		return "the bytes are not a point of Ed25519"
	}
	if !bytes.Equal(p.Bytes(), point) {
		return "the point is not encoded canonically"
	}
	if new(edwards25519.Point).MultByCofactor(p).Equal(edwards25519.NewIdentityPoint()) == 1 {
		return "the point has low order"
	}
	return ""
}

// parsePEM reads a SubjectPublicKeyInfo for Ed25519. The DER is always the same twelve bytes followed by the point, so
// parsePEM refuses any other encoding.
func parsePEM(text string) (*PublicKey, error) {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "PUBLIC KEY" || len(block.Headers) > 0 {
		return nil, refuse("the PEM block is damaged")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, refuse("there is more than one key")
	}
	point, ok := bytes.CutPrefix(block.Bytes, spkiPrefix)
	if !ok {
		return nil, refuse("a PEM key must be Ed25519")
	}
	return newEd25519(point)
}

// parseRawEd25519 reads 32 bytes in base64 or base64url or, if allowHex is true, in hex.
func parseRawEd25519(text string, allowHex bool) (*PublicKey, error) {
	if allowHex && len(text) == hex.EncodedLen(ed25519.PublicKeySize) {
		point, err := hex.DecodeString(text)
		if err != nil {
			return nil, refuse("the hex is damaged")
		}
		return newEd25519(point)
	}
	point, ok := decodeBase64(text)
	if !ok || len(point) != ed25519.PublicKeySize {
		return nil, refuse("the text is not a key of a known kind")
	}
	return newEd25519(point)
}

// parseSSH reads one line of the form "ssh-ed25519 AAAA… [comment]".
func parseSSH(text string) (*PublicKey, error) {
	if strings.ContainsAny(text, "\r\n") {
		return nil, refuse("there is more than one key")
	}
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return nil, refuse("the ssh key is damaged")
	}
	blob, ok := decodeBase64(fields[1])
	point, isEd25519 := bytes.CutPrefix(blob, []byte(sshPrefix))
	if !ok || !isEd25519 {
		return nil, refuse("the ssh key is damaged")
	}
	return newEd25519(point)
}

func decodeSignature(text string) ([]byte, error) {
	if len(text) > 88 { // 64 bytes in padded base64
		return nil, badSignature("not base64 of 64 bytes")
	}
	sig, ok := decodeBase64(text)
	if !ok || len(sig) != ed25519.SignatureSize {
		return nil, badSignature("not base64 of 64 bytes")
	}
	return sig, nil
}

// prepare implements [scheme]. An Ed25519 signature has no time.
func (s ed25519Scheme) prepare(signature string, _ Window, _ time.Time) (func([]byte) error, error) {
	sig, err := decodeSignature(signature)
	if err != nil {
		return nil, err
	}
	return func(data []byte) error { return s.key.verify(data, sig) }, nil
}

// usable implements [scheme].
func (s ed25519Scheme) usable(time.Time) error { return nil }
