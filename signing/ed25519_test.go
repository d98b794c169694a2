package signing

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/edwards25519"
)

var (
	fieldP = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	groupL = func() *big.Int {
		l, _ := new(big.Int).SetString("27742317777372353535851937790883648493", 10)
		return l.Add(l, new(big.Int).Lsh(big.NewInt(1), 252))
	}()
)

// littleEndian returns n as 32 bytes, least significant byte first.
func littleEndian(n *big.Int) []byte {
	b := n.FillBytes(make([]byte, 32))
	slices.Reverse(b)
	return b
}

func fromLittleEndian(b []byte) *big.Int {
	b = slices.Clone(b)
	slices.Reverse(b)
	return new(big.Int).SetBytes(b)
}

// torsion returns the eight points of small order, which are the multiples of one point of order eight.
func torsion(t testing.TB) []*edwards25519.Point {
	t.Helper()
	minusOne, err := edwards25519.NewScalar().SetCanonicalBytes(littleEndian(new(big.Int).Sub(groupL, big.NewInt(1))))
	if err != nil {
		t.Fatal(err)
	}
	identity := edwards25519.NewIdentityPoint()
	for y := int64(2); ; y++ {
		p, err := new(edwards25519.Point).SetBytes(littleEndian(big.NewInt(y)))
		if err != nil {
			continue
		}
		generator := new(edwards25519.Point).ScalarMult(minusOne, p)
		generator.Add(generator, p) // L·p leaves only the component of small order
		points := []*edwards25519.Point{identity}
		for len(points) < 8 {
			points = append(points, new(edwards25519.Point).Add(points[len(points)-1], generator))
		}
		if points[4].Equal(identity) == 0 && new(edwards25519.Point).Add(points[7], generator).Equal(identity) == 1 {
			return points
		}
	}
}

// encodings returns every 32 bytes that some decoder accepts for p: with and without the sign bit if x is zero, and
// with y+p if that fits.
func encodings(p *edwards25519.Point) [][]byte {
	canonical := p.Bytes()
	sign := canonical[31] & 0x80
	plain := slices.Clone(canonical)
	plain[31] &= 0x7f
	out := [][]byte{canonical}
	flipped := slices.Clone(canonical)
	flipped[31] ^= 0x80
	out = append(out, flipped) // −x is another point of small order, or x = 0 with the sign bit set
	if y := new(big.Int).Add(fromLittleEndian(plain), fieldP); y.BitLen() <= 255 {
		high := littleEndian(y)
		high[31] |= sign
		other := slices.Clone(high)
		other[31] ^= 0x80
		out = append(out, high, other)
	}
	return out
}

// spellings returns 32 bytes in every spelling in which a card may carry an Ed25519 key (AM-8).
func spellings(point []byte) map[string]string {
	blob := append([]byte(sshPrefix), point...)
	spki := append(slices.Clone(spkiPrefix), point...)
	return map[string]string{
		"PEM":            string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})),
		"PEM one line":   strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}))),
		"PEM CRLF":       strings.ReplaceAll(string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})), "\n", "\r\n"),
		"base64":         "ed25519:" + base64.StdEncoding.EncodeToString(point),
		"raw base64":     "ed25519:" + base64.RawStdEncoding.EncodeToString(point),
		"base64url":      "ed25519:" + base64.URLEncoding.EncodeToString(point),
		"raw base64url":  "ed25519:" + base64.RawURLEncoding.EncodeToString(point),
		"hex":            "ed25519:" + hex.EncodeToString(point),
		"upper-case hex": "ed25519:" + strings.ToUpper(hex.EncodeToString(point)),
		"bare":           base64.StdEncoding.EncodeToString(point),
		"bare raw url":   base64.RawURLEncoding.EncodeToString(point),
		"ssh":            "ssh-ed25519 " + base64.StdEncoding.EncodeToString(blob),
		"ssh comment":    "ssh-ed25519 " + base64.StdEncoding.EncodeToString(blob) + " chris@example.com laptop\n",
	}
}

func TestEd25519Spellings(t *testing.T) {
	key := NewEd25519FromSeed(bytes.Repeat([]byte{3}, 32))
	point := key.Public().Canonical()
	sig, err := key.Sign([]byte("data"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range spellings(point) {
		got, err := ParsePublicKey(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Kind() != KindEd25519 || got.Fingerprint() != key.Public().Fingerprint() || got.AgentID() != key.Public().AgentID() {
			t.Errorf("%s: another key", name)
		}
		if err := got.Verify([]byte("data"), sig, Window{}, time.Time{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := got.Usable(time.Time{}); err != nil {
			t.Errorf("%s: Usable = %v", name, err)
		}
	}
}

// TestWeakPoints checks AM-8 and THREATS row 7: ParsePublicKey refuses all eight small-order points in every encoding,
// all zeros, y ≥ p, and bytes that are not a point.
func TestWeakPoints(t *testing.T) {
	weak := map[string][]byte{
		"all zero":             make([]byte, 32),
		"all ones":             bytes.Repeat([]byte{0xff}, 32),
		"y = p":                littleEndian(fieldP),
		"y = p+1":              littleEndian(new(big.Int).Add(fieldP, big.NewInt(1))),
		"y not on the curve":   littleEndian(big.NewInt(2)),
		"y = 2^255-1":          littleEndian(new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(1))),
		"y = p+3, on curve":    littleEndian(new(big.Int).Add(fieldP, big.NewInt(3))),
		"y = p+4, on curve":    littleEndian(new(big.Int).Add(fieldP, big.NewInt(4))),
		"y = p+18, last above": littleEndian(new(big.Int).Add(fieldP, big.NewInt(18))),
	}
	for i, p := range torsion(t) {
		for j, enc := range encodings(p) {
			weak[fmt.Sprintf("small order %d, encoding %d", i, j)] = enc
		}
	}
	for name, point := range weak {
		for spelling, text := range spellings(point) {
			key, err := ParsePublicKey(text)
			if _, ok := errors.AsType[*KeyError](err); !ok {
				t.Errorf("%s in %s: ParsePublicKey = %v, %v", name, spelling, key, err)
			}
		}
	}
}

// TestIdentityKeyIsWhy shows the reason for refusing low order: with the identity as the key, the standard library
// accepts one fixed signature for every message.
func TestIdentityKeyIsWhy(t *testing.T) {
	identity := edwards25519.NewIdentityPoint().Bytes()
	sig := append(slices.Clone(identity), make([]byte, 32)...)
	if !ed25519.Verify(identity, []byte("one"), sig) || !ed25519.Verify(identity, []byte("two"), sig) {
		t.Skip("the standard library now refuses low order itself")
	}
	if _, err := newEd25519(identity); err == nil {
		t.Error("the identity became a key")
	}
}

// TestMixedOrderKey checks that a key A+T is accepted (AM-8 names only low order) and that signatures follow the
// cofactorless equation of the standard library. A signature that only a verifier with the cofactor accepts fails.
func TestMixedOrderKey(t *testing.T) {
	a, err := edwards25519.NewScalar().SetUniformBytes(bytes.Repeat([]byte{9}, 64))
	if err != nil {
		t.Fatal(err)
	}
	mixed := new(edwards25519.Point).Add(new(edwards25519.Point).ScalarBaseMult(a), torsion(t)[1]).Bytes()
	key, err := ParsePublicKey("ed25519:" + hex.EncodeToString(mixed))
	if err != nil {
		t.Fatalf("a mixed-order key is refused: %v", err)
	}
	seen := map[bool]int{}
	for i := range byte(64) {
		msg := []byte{i}
		r := hashToScalar([]byte("nonce"), msg)
		R := new(edwards25519.Point).ScalarBaseMult(r).Bytes()
		k := hashToScalar(R, mixed, msg)
		sig := append(slices.Clone(R), edwards25519.NewScalar().MultiplyAdd(k, a, r).Bytes()...)
		torsionFree := k.Bytes()[0]&7 == 0 // k·T is zero
		seen[torsionFree]++
		err := key.Verify(msg, encodeBase64(sig), Window{}, time.Time{})
		if (err == nil) != torsionFree || ed25519.Verify(mixed, msg, sig) != torsionFree {
			t.Errorf("message %d: Verify = %v, the cofactorless equation holds: %v", i, err, torsionFree)
		}
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("not both outcomes were seen: %v", seen)
	}
}

// TestMalleableS checks that a signature with S+L instead of S, the same number modulo L, does not verify (AM-17), for
// both schemes with 64-byte signatures.
func TestMalleableS(t *testing.T) {
	for _, key := range []*PrivateKey{benchKey(), newAgeKey(t)} {
		text, err := key.Sign([]byte("data"))
		if err != nil {
			t.Fatal(err)
		}
		sig, _ := decodeBase64(text)
		for s := fromLittleEndian(sig[32:]); s.BitLen() <= 255; s.Add(s, groupL) {
			forged := encodeBase64(append(slices.Clone(sig[:32]), littleEndian(s)...))
			err := key.Public().Verify([]byte("data"), forged, Window{}, time.Time{})
			if honest := forged == text; (err == nil) != honest {
				t.Errorf("%s: S of %d bits: Verify = %v", key.Public().Kind(), s.BitLen(), err)
			}
		}
		for _, s := range []*big.Int{groupL, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(1))} {
			forged := encodeBase64(append(slices.Clone(sig[:32]), littleEndian(s)...))
			if err := key.Public().Verify([]byte("data"), forged, Window{}, time.Time{}); !errors.Is(err, ErrBadSignature) {
				t.Errorf("%s: S = %v: Verify = %v", key.Public().Kind(), s, err)
			}
		}
	}
}

// TestBase64 checks AM-17 and THREATS row 8: four spellings of a signature verify, and all others fail.
func TestBase64(t *testing.T) {
	key := benchKey()
	var text string
	var data []byte
	for i := 0; !strings.Contains(text, "+") || !strings.Contains(text, "/"); i++ { // so that the alphabets differ
		data = fmt.Append(nil, "data", i)
		text, _ = key.Sign(data)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != 64 || !strings.HasSuffix(text, "==") {
		t.Fatalf("Sign does not emit padded standard base64: %s", text)
	}
	url := base64.URLEncoding.EncodeToString(raw)
	good := []string{text, strings.TrimRight(text, "="), url, strings.TrimRight(url, "=")}
	for _, s := range good {
		if err := key.Public().Verify(data, s, Window{}, time.Time{}); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	last := strings.TrimRight(text, "=")
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	tail := alphabet[strings.IndexByte(alphabet, last[len(last)-1])+1]
	mixed := strings.Replace(text, "+", "-", 1) // one character of the URL alphabet among the standard ones
	bad := map[string]string{
		"empty":              "",
		"CR LF at the end":   text + "\r\n",
		"LF at the end":      text + "\n",
		"LF inside":          text[:40] + "\n" + text[40:],
		"CR inside":          text[:40] + "\r" + text[40:],
		"blank before":       " " + text,
		"blank inside":       text[:40] + " " + text[40:],
		"tab at the end":     text + "\t",
		"NUL":                text[:40] + "\x00" + text[40:],
		"non-zero tail bits": last[:len(last)-1] + string(tail) + "==",
		"tail bits unpadded": last[:len(last)-1] + string(tail),
		"one pad":            last + "=",
		"three pads":         last + "===",
		"pads in front":      "==" + last,
		"pad inside":         last[:40] + "=" + last[40:],
		"both alphabets":     mixed,
		"hex":                hex.EncodeToString(raw),
		"63 bytes":           base64.StdEncoding.EncodeToString(raw[:63]),
		"65 bytes":           base64.StdEncoding.EncodeToString(append(slices.Clone(raw), 0)),
		"twice":              text + text,
		"prefixed":           "ed25519:" + text,
		"very long":          strings.Repeat("A", 1<<20),
		"fullwidth":          strings.Replace(text, "A", "\uff21", 1) + "\uff1d",
	}
	for name, s := range bad {
		if err := key.Public().Verify(data, s, Window{}, time.Time{}); !errors.Is(err, ErrBadSignature) {
			t.Errorf("%s: Verify(%.100q) = %v", name, s, err)
		}
	}
}

// TestAnyChangedByteFails checks that a signature fails if any single byte of the canonical text changes (rules 17–19).
func TestAnyChangedByteFails(t *testing.T) {
	key := benchKey()
	data := Canonical(mustParse(t, `{"to":"am_b","from":"am_a","payload":{"n":1}}`), JCS)
	sig, err := key.Sign(data)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		changed := slices.Clone(data)
		changed[i] ^= 1
		if key.Public().Verify(changed, sig, Window{}, time.Time{}) == nil {
			t.Errorf("byte %d may change", i)
		}
	}
}

func TestRFC8032(t *testing.T) {
	dir := corpora(t, "ed25519-rfc8032")
	var vectors []struct{ Name, Seed, Public, Msg, Sig string }
	if err := json.Unmarshal(readFile(t, filepath.Join(dir, "rfc8032_7.1.json")), &vectors); err != nil {
		t.Fatal(err)
	}
	for _, vec := range vectors {
		checkVector(t, vec.Name, vec.Seed, vec.Public, vec.Msg, vec.Sig)
	}
	if len(vectors) < 4 {
		t.Errorf("%d vectors", len(vectors))
	}
	f, err := os.Open(filepath.Join(dir, "sign.input.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		fields := strings.Split(lines.Text(), ":")
		checkVector(t, fmt.Sprintf("sign.input %d", n), fields[0][:64], fields[1], fields[2], fields[3][:128])
	}
	if n < 100 {
		t.Errorf("read %d lines of sign.input", n)
	}
}

func checkVector(t *testing.T, name, seed, public, msg, sig string) {
	t.Helper()
	var raw [4][]byte
	for i, s := range []string{seed, public, msg, sig} {
		var err error
		if raw[i], err = hex.DecodeString(s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	private := NewEd25519FromSeed(raw[0])
	if !bytes.Equal(private.Public().Canonical(), raw[1]) {
		t.Errorf("%s: another public key", name)
	}
	if got, err := private.Sign(raw[2]); err != nil || got != encodeBase64(raw[3]) {
		t.Errorf("%s: Sign = %s, %v", name, got, err)
	}
	key, err := ParsePublicKey("ed25519:" + public)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := key.Verify(raw[2], encodeBase64(raw[3]), Window{}, time.Time{}); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	raw[3][3] ^= 4
	if err := key.Verify(raw[2], encodeBase64(raw[3]), Window{}, time.Time{}); !errors.Is(err, ErrBadSignature) {
		t.Errorf("%s, bit flipped: %v", name, err)
	}
}

// TestHashToScalar checks that hashToScalar is SHA-512, on which the mixed-order test relies.
func TestHashToScalar(t *testing.T) {
	sum := sha512.Sum512([]byte("ab"))
	want, err := edwards25519.NewScalar().SetUniformBytes(sum[:])
	if err != nil || hashToScalar([]byte("a"), []byte("b")).Equal(want) != 1 {
		t.Error("hashToScalar is not SHA-512 of its parts modulo L")
	}
}
