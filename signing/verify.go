package signing

import (
	voi "github.com/oasisprotocol/curve25519-voi/primitives/ed25519"
)

// verifyKey checks signatures with one Ed25519 point (docs/decisions/0020). It holds the first odd multiples of the
// point, 1.5 KiB that take a tenth of a verification to compute. Nothing else calls this library, and the library never
// sees a private key: the standard library makes the signatures.
type verifyKey struct{ expanded *voi.ExpandedPublicKey }

// cofactorless makes the library give the same results as crypto/ed25519: S must be below L (AM-17), and the encoding
// of [S]B − [k]A must equal the bytes of R. After [pointFault], the library again refuses keys of low order and
// non-canonical encodings, which the standard library would accept.
var cofactorless = &voi.Options{Verify: &voi.VerifyOptions{AllowSmallOrderR: true, CofactorlessVerify: true}}

// newVerifyKey returns the key of an encoded point, or the reason why the point cannot be a key (AM-8).
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

// verify returns nil exactly if crypto/ed25519 would accept the signature.
func (k verifyKey) verify(data, sig []byte) error {
	if !voi.VerifyExpandedWithOptions(k.expanded, data, sig, cofactorless) {
		return badSignature("it does not verify")
	}
	return nil
}
