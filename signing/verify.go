package signing

import (
	voi "github.com/oasisprotocol/curve25519-voi/primitives/ed25519"
)

// verifyKey checks signatures under one point of Ed25519 (docs/decisions/0020). It holds
// the point's first odd multiples, 1.5 KiB that cost a tenth of one verification. Nothing else calls this library,
// and it never sees a private key: signing stays in the standard library.
type verifyKey struct{ expanded *voi.ExpandedPublicKey }

// cofactorless lets the library judge as crypto/ed25519 does: S must be below L (AM-17), [S]B − [k]A is encoded and
// compared with the bytes of R. Keys of low order or in another encoding, which the standard library would take, are
// refused a second time, after [pointFault].
var cofactorless = &voi.Options{Verify: &voi.VerifyOptions{AllowSmallOrderR: true, CofactorlessVerify: true}}

// newVerifyKey makes a key of an encoded point, or says why the point cannot be one (AM-8).
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

// verify says what crypto/ed25519 would say of the same bytes.
func (k verifyKey) verify(data, sig []byte) error {
	if !voi.VerifyExpandedWithOptions(k.expanded, data, sig, cofactorless) {
		return badSignature("it does not verify")
	}
	return nil
}
