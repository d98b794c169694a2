package signing

import (
	"bytes"
	"crypto/sha512"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/edwards25519"
	"filippo.io/edwards25519/field"
)

// xeddsaScheme verifies with an age key. An age recipient is a Montgomery u-coordinate, which belongs to two Ed25519
// points with opposite signs. XEdDSA (Perrin 2016) verifies with the point whose sign is zero, so a signer negates
// the scalar if necessary. libsignal keeps the scalar and sends the sign in the top bit of the signature. We accept
// both, and make signatures in the form of the paper. Signing with an age key is only for compatibility (AM-10).
type xeddsaScheme struct {
	keys [2]verifyKey // indexed by the sign bit
}

// parseAgeRecipient reads "age1…", an X25519 recipient in bech32.
func parseAgeRecipient(text string) (*PublicKey, error) {
	recipient, err := age.ParseX25519Recipient(text)
	if err != nil {
		return nil, refuse("the age recipient is damaged")
	}
	return newXEdDSA(bech32Payload(recipient.String()))
}

func newXEdDSA(u []byte) (*PublicKey, error) {
	point, reason := montgomeryToEdwards(u)
	if reason != "" {
		return nil, refuse(reason)
	}
	var s xeddsaScheme
	for sign := range s.keys {
		point[31] = point[31]&0x7f | byte(sign)<<7
		if s.keys[sign], reason = newVerifyKey(point); reason != "" {
			return nil, refuse(reason)
		}
	}
	return &PublicKey{kind: KindAge, canonical: bytes.Clone(u), scheme: s}, nil
}

// montgomeryToEdwards maps u to y = (u−1)/(u+1) with sign zero. If u is not below p, it returns the reason. For a u on
// the twist or of low order, it returns bytes that [newVerifyKey] refuses.
func montgomeryToEdwards(u []byte) (point []byte, reason string) {
	e, err := new(field.Element).SetBytes(u)
	if err != nil || !bytes.Equal(e.Bytes(), u) {
		return nil, "the u-coordinate is not encoded canonically"
	}
	one := new(field.Element).One()
	denominator := new(field.Element).Add(e, one)
	y := new(field.Element).Subtract(e, one)
	y.Multiply(y, denominator.Invert(denominator))
	return y.Bytes(), ""
}

// prepare implements [scheme].
func (s xeddsaScheme) prepare(signature string, _ Window, _ time.Time) (func([]byte) error, error) {
	sig, err := decodeSignature(signature)
	if err != nil {
		return nil, err
	}
	key := s.keys[sig[63]>>7]
	sig[63] &= 0x7f
	return func(data []byte) error { return key.verify(data, sig) }, nil
}

// usable implements [scheme].
func (s xeddsaScheme) usable(time.Time) error { return nil }

// signXEdDSA signs with an X25519 private key as in the paper: the sign bit of A, the public key, is zero, and the
// nonce comes from the 64 random bytes z.
func signXEdDSA(private, data, z []byte) ([]byte, error) {
	k, err := edwards25519.NewScalar().SetBytesWithClamping(private)
	if err != nil {
		return nil, err
	}
	a := clamp(private)
	A := new(edwards25519.Point).ScalarBaseMult(k).Bytes()
	if A[31]&0x80 != 0 {
		a = k.Negate(k).Bytes()
		A[31] &= 0x7f
	}
	// This is hash_i of the paper for i = 1: the prefix 2^256 − 1 − i separates the nonce from every other use of SHA-512.
	prefix := bytes.Repeat([]byte{0xff}, 32)
	prefix[0] = 0xfe
	r := hashToScalar(prefix, a, data, z)
	R := new(edwards25519.Point).ScalarBaseMult(r).Bytes()
	h := hashToScalar(R, A, data)
	return append(R, edwards25519.NewScalar().MultiplyAdd(h, k, r).Bytes()...), nil
}

// clamp turns 32 bytes into an X25519 scalar (RFC 7748 §5), which is not reduced modulo L.
func clamp(private []byte) []byte {
	a := bytes.Clone(private)
	a[0] &= 248
	a[31] = a[31]&127 | 64
	return a
}

func hashToScalar(parts ...[]byte) *edwards25519.Scalar {
	h := sha512.New()
	for _, p := range parts {
		h.Write(p)
	}
	s, err := edwards25519.NewScalar().SetUniformBytes(h.Sum(nil))
	if err != nil {
		panic("signing: SHA-512 is not 64 bytes")
	}
	return s
}

// bech32Payload returns the 32 bytes of a bech32 string. The string comes from the age library, which does not export
// its decoder, so prefix, alphabet, checksum and padding are correct.
func bech32Payload(text string) []byte {
	const charset, checksum = "qpzry9x8gf2tvdw0s3jn54khce6mua7l", 6
	text = strings.ToLower(text)
	text = text[strings.LastIndexByte(text, '1')+1 : len(text)-checksum]
	out := make([]byte, 0, 32)
	acc, bits := uint(0), 0
	for i := range len(text) {
		acc = acc<<5 | uint(strings.IndexByte(charset, text[i]))
		if bits += 5; bits >= 8 {
			bits -= 8
			out = append(out, byte(acc>>bits))
		}
	}
	return out
}
