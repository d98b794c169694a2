package signing

import (
	"bytes"
	"crypto/ed25519"
	"math/big"
	"slices"
	"testing"

	"filippo.io/edwards25519"
	"pgregory.net/rapid"
)

// sameVerdict compares the verifier with crypto/ed25519, for one message and one signature. It returns their common
// result and whether the point can be a key.
func sameVerdict(t rapid.TB, point, msg, sig []byte) (valid, isKey bool) {
	key, reason := newVerifyKey(point)
	if reason != "" {
		return false, false
	}
	valid = ed25519.Verify(point, msg, sig)
	if err := key.verify(msg, sig); (err == nil) != valid {
		t.Fatalf("key %x\nmessage %x\nsignature %x\ncrypto/ed25519: %t, verify: %v", point, msg, sig, valid, err)
	}
	return valid, true
}

// forger knows the scalar of a point plus a point of small order, so it can make signatures for any R.
type forger struct {
	a   *edwards25519.Scalar
	enc []byte // the encoding of [a]B + T
}

func newForger(a *edwards25519.Scalar, small *edwards25519.Point) forger {
	point := new(edwards25519.Point).ScalarBaseMult(a)
	return forger{a, point.Add(point, small).Bytes()}
}

// sign returns R‖S with S = r + k·a for this encoding of R, so that [S]B − [k]A is [r]B − [k]T.
func (f forger) sign(r *edwards25519.Scalar, encR, msg []byte) []byte {
	k := hashToScalar(encR, f.enc, msg)
	return append(slices.Clone(encR), edwards25519.NewScalar().MultiplyAdd(k, f.a, r).Bytes()...)
}

// TestSameVerdictSmallOrder combines keys with every torsion component and R with every torsion component, including
// points of small order alone, in every encoding that some decoder accepts. Both results must occur.
func TestSameVerdictSmallOrder(t *testing.T) {
	torsion := torsion(t)
	a := hashToScalar([]byte("a"))
	for i, smallA := range torsion {
		f := newForger(a, smallA)
		seen := map[bool]int{}
		for j, smallR := range torsion {
			for _, r := range []*edwards25519.Scalar{edwards25519.NewScalar(), hashToScalar([]byte("r"))} {
				R := new(edwards25519.Point).ScalarBaseMult(r)
				R.Add(R, smallR)
				for e, encR := range encodings(R) {
					for m := range byte(16) {
						valid, isKey := sameVerdict(t, f.enc, []byte{m}, f.sign(r, encR, []byte{m}))
						if !isKey || valid && !isCanonical(encR) {
							t.Errorf("key + T%d, R + T%d in encoding %d: valid %t, key %t", i, j, e, valid, isKey)
						}
						seen[valid]++
					}
				}
			}
		}
		if seen[true] < 8 || seen[false] < 8 {
			t.Errorf("key + T%d: outcomes %v", i, seen)
		}
	}
}

func isCanonical(enc []byte) bool {
	p, err := new(edwards25519.Point).SetBytes(enc)
	return err == nil && bytes.Equal(p.Bytes(), enc)
}

// TestSameVerdictEdgeCases checks the cases in which implementations of Ed25519 are known to differ ("Taming the many
// EdDSAs", 2020), and other faults of 64 bytes.
func TestSameVerdictEdgeCases(t *testing.T) {
	torsion := torsion(t)
	none, order8, order2 := torsion[0], torsion[1], torsion[4]
	zero, r := edwards25519.NewScalar(), hashToScalar([]byte("nonce"))
	plain, mixed, small := newForger(hashToScalar([]byte("a")), none), newForger(hashToScalar([]byte("a")), order8), newForger(zero, order8)
	at := func(r *edwards25519.Scalar, small *edwards25519.Point) []byte {
		p := new(edwards25519.Point).ScalarBaseMult(r)
		return p.Add(p, small).Bytes()
	}
	R := at(r, none)
	// Two more encodings of the identity: the sign bit with x = 0, and y = p+1.
	signBit, highY := littleEndian(big.NewInt(1)), littleEndian(new(big.Int).Add(fieldP, big.NewInt(1)))
	signBit[31] |= 0x80
	negated := slices.Clone(R)
	negated[31] ^= 0x80

	plusL := func(times int64) func([]byte) []byte {
		return func(sig []byte) []byte {
			s := fromLittleEndian(sig[32:])
			return append(sig[:32], littleEndian(s.Add(s, new(big.Int).Mul(big.NewInt(times), groupL)))...)
		}
	}
	fixedS := func(exp uint, minus int64) func([]byte) []byte {
		s := new(big.Int).Lsh(big.NewInt(1), exp)
		s.Sub(s, big.NewInt(minus))
		return func(sig []byte) []byte { return append(sig[:32], littleEndian(s)...) }
	}
	for _, c := range []struct {
		name  string
		key   forger
		r     *edwards25519.Scalar
		encR  []byte
		spoil func(sig []byte) []byte
		isKey bool
		want  outcome
	}{
		{"honest", plain, r, R, nil, true, always},
		{"small A, small R, S = 0", small, zero, at(zero, order2), nil, false, never},
		{"small A, mixed R", small, r, at(r, order2), nil, false, never},
		{"mixed A, small R", mixed, zero, at(zero, order2), nil, true, sometimes},
		{"mixed A, mixed R", mixed, r, at(r, order2), nil, true, sometimes},
		{"mixed A, R of prime order", mixed, r, R, nil, true, sometimes},
		{"valid only times the cofactor", plain, r, at(r, order8), nil, true, never},
		{"small R", plain, zero, at(zero, order2), nil, true, never},
		{"R the identity", plain, zero, at(zero, none), nil, true, always},
		{"R the identity with a sign bit", plain, zero, signBit, nil, true, never},
		{"R the identity as y = p+1", plain, zero, highY, nil, true, never},
		{"mixed A, R the identity as y = p+1", mixed, zero, highY, nil, true, never},
		{"R no point", plain, r, littleEndian(big.NewInt(2)), nil, true, never},
		{"R all ones", plain, r, bytes.Repeat([]byte{0xff}, 32), nil, true, never},
		{"R negated", plain, r, negated, nil, true, never},
		{"S + L", plain, r, R, plusL(1), true, never},
		{"S + 7·L", plain, r, R, plusL(7), true, never},
		{"S + 14·L", plain, r, R, plusL(14), true, never},
		{"S = 0", plain, r, R, fixedS(0, 1), true, never},
		{"S = 2^252, below L", plain, r, R, fixedS(252, 0), true, never},
		{"S = 2^253−1, above L", plain, r, R, fixedS(253, 1), true, never},
		{"S = 2^256−1", plain, r, R, fixedS(256, 1), true, never},
		{"63 bytes", plain, r, R, func(sig []byte) []byte { return sig[:63] }, true, never},
		{"65 bytes", plain, r, R, func(sig []byte) []byte { return append(sig, 0) }, true, never},
		{"no bytes", plain, r, R, func([]byte) []byte { return nil }, true, never},
		{"S before R", plain, r, R, func(sig []byte) []byte { return append(sig[32:], sig[:32]...) }, true, never},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := map[bool]int{}
			for m := range byte(64) {
				sig := c.key.sign(c.r, c.encR, []byte{m})
				if c.spoil != nil {
					sig = c.spoil(sig)
				}
				valid, isKey := sameVerdict(t, c.key.enc, []byte{m}, sig)
				if isKey != c.isKey {
					t.Fatalf("is a key: %t", isKey)
				}
				seen[valid]++
			}
			if got := outcomeOf(seen); got != c.want {
				t.Errorf("valid %s, want %s", got, c.want)
			}
		})
	}
}

// outcome is how many of the messages of one case verify.
type outcome string

const (
	always    outcome = "always"
	sometimes outcome = "sometimes" // if [k]T depends on the message
	never     outcome = "never"
)

func outcomeOf(seen map[bool]int) outcome {
	switch {
	case seen[true] == 0:
		return never
	case seen[false] == 0:
		return always
	}
	return sometimes
}

// TestSameVerdictTinyY checks the keys with the smallest y, whose discrete logarithm nobody knows, with both signs.
func TestSameVerdictTinyY(t *testing.T) {
	f := newForger(hashToScalar([]byte("a")), torsion(t)[0])
	r := hashToScalar([]byte("r"))
	sig := f.sign(r, new(edwards25519.Point).ScalarBaseMult(r).Bytes(), []byte("data"))
	keys := 0
	for y := range int64(40) {
		for _, sign := range []byte{0, 0x80} {
			point := littleEndian(big.NewInt(y))
			point[31] |= sign
			if valid, isKey := sameVerdict(t, point, []byte("data"), sig); isKey {
				keys++
				if valid {
					t.Errorf("y = %d took a signature by another key", y)
				}
			}
		}
	}
	if keys < 20 {
		t.Errorf("only %d keys", keys)
	}
}

// drawSigned draws a key with any torsion, a message and a signature that is correct except for the torsion and the
// encoding of R.
func drawSigned(t *rapid.T, torsion []*edwards25519.Point) (f forger, msg, sig []byte) {
	small := rapid.SampledFrom(torsion)
	f = newForger(hashToScalar(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "a")), small.Draw(t, "T of A"))
	r := hashToScalar(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "r"))
	if rapid.Bool().Draw(t, "small R") {
		r = edwards25519.NewScalar()
	}
	R := new(edwards25519.Point).ScalarBaseMult(r)
	R.Add(R, small.Draw(t, "T of R"))
	msg = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "message")
	return f, msg, f.sign(r, rapid.SampledFrom(encodings(R)).Draw(t, "encoding"), msg)
}

// TestSameVerdictFlips flips bits in a key, a signature or a message that is correct or nearly correct.
func TestSameVerdictFlips(t *testing.T) {
	torsion := torsion(t)
	rapid.Check(t, func(t *rapid.T) {
		f, msg, sig := drawSigned(t, torsion)
		sameVerdict(t, f.enc, msg, sig)
		for _, part := range [][]byte{f.enc, sig, msg} {
			if len(part) == 0 {
				continue
			}
			bit := rapid.IntRange(0, len(part)*8-1).Draw(t, "bit")
			part[bit/8] ^= 1 << (bit % 8)
			sameVerdict(t, f.enc, msg, sig)
			part[bit/8] ^= 1 << (bit % 8)
		}
	})
}

// FuzzSameVerdict compares the verdicts for any key, message and signature.
func FuzzSameVerdict(f *testing.F) {
	torsion := torsion(f)
	for i, small := range torsion {
		key := newForger(hashToScalar([]byte("a")), small)
		R := new(edwards25519.Point).Add(new(edwards25519.Point).ScalarBaseMult(hashToScalar([]byte("r"))), torsion[i^1])
		f.Add(key.enc, []byte("data"), key.sign(hashToScalar([]byte("r")), R.Bytes(), []byte("data")))
		f.Add(small.Bytes(), []byte("data"), append(small.Bytes(), make([]byte, 32)...))
	}
	f.Fuzz(func(t *testing.T, point, msg, sig []byte) {
		if len(point) == ed25519.PublicKeySize {
			sameVerdict(t, point, msg, sig)
		}
	})
}
