package signing

import (
	voi "github.com/oasisprotocol/curve25519-voi/primitives/ed25519"
)

// verifyKey verifies the signatures of one Ed25519 public key with the library curve25519-voi (docs/decisions/0020). It
// stores multiples of the key's point, 1.5 KiB, which make verification faster. Only this file calls the library, which
// never gets a private key: the standard library makes the signatures.
type verifyKey struct{ expanded *voi.ExpandedPublicKey }

// cofactorless makes the library give the same results as crypto/ed25519: S must be below L (AM-17), and the encoding
// of [S]B − [k]A must equal the bytes of R. crypto/ed25519 would accept keys of low order and non-canonical encodings.
// [pointFault] and the library both refuse them.
var cofactorless = &voi.Options{Verify: &voi.VerifyOptions{AllowSmallOrderR: true, CofactorlessVerify: true}}

// newVerifyKey returns the key for an encoded point, or the reason why it is not acceptable (AM-8).
func newVerifyKey(point []byte) (key verifyKey, reason string) {
	if reason := pointFault(point); reason != "" {
		return verifyKey{}, reason
	}
	expanded, err := voi.NewExpandedPublicKey(point)
	if err != nil {
		return verifyKey{}, "the bytes are not a point of Ed25519"
	}
	return verifyKey{expanded}, ""
}

// verify returns nil if and only if crypto/ed25519 accepts the signature.
func (k verifyKey) verify(data, sig []byte) error {
	if !voi.VerifyExpandedWithOptions(k.expanded, data, sig, cofactorless) {
		return badSignature("it does not verify")
	}
	return nil
}
