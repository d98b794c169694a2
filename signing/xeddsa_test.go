package signing

import (
	"bytes"
	"crypto/ecdh"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
)

func newAgeKey(t testing.TB) *PrivateKey {
	t.Helper()
	identity, recipient, err := GenerateAge()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParsePrivateKey([]byte(identity))
	if err != nil {
		t.Fatal(err)
	}
	if key.PublicText() != recipient || key.Public().Kind() != KindAge {
		t.Fatalf("the identity's public text is %s, its recipient %s", key.PublicText(), recipient)
	}
	return key
}

// recipientText writes "age1…" for any u (bech32, BIP 173). The age library does this only for points that it computed
// itself.
func recipientText(u []byte) string {
	const charset = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	var values []byte
	acc, bits := uint(0), 0
	for _, b := range u {
		acc, bits = acc<<8|uint(b), bits+8
		for bits >= 5 {
			bits -= 5
			values = append(values, byte(acc>>bits)&31)
		}
	}
	if bits > 0 {
		values = append(values, byte(acc<<(5-bits))&31)
	}
	check := uint32(1)
	for _, v := range slices.Concat([]byte{3, 3, 3, 0, 'a' & 31, 'g' & 31, 'e' & 31}, values, make([]byte, 6)) {
		top := check >> 25
		check = (check&0x1ffffff)<<5 ^ uint32(v)
		for i, g := range []uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				check ^= g
			}
		}
	}
	check ^= 1
	for i := range 6 {
		values = append(values, byte(check>>(5*(5-i)))&31)
	}
	var text strings.Builder
	text.WriteString("age1")
	for _, v := range values {
		text.WriteByte(charset[v])
	}
	return text.String()
}

func TestXEdDSAVectors(t *testing.T) {
	type vector struct {
		Private string `json:"x25519_private"`
		Public  string `json:"x25519_public"`
		Z, Msg  string
		Sig     string
		Dialect string
	}
	var file struct {
		Fixed     []vector
		Spec      []vector `json:"spec_vectors"`
		Libsignal []vector `json:"libsignal_vectors"`
	}
	if err := json.Unmarshal(readFile(t, filepath.Join(corpora(t, "xeddsa"), "xeddsa_give.json")), &file); err != nil {
		t.Fatal(err)
	}
	decode := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	signBits := map[byte]int{}
	all := slices.Concat(file.Fixed, file.Spec, file.Libsignal)
	if len(all) != 82 {
		t.Errorf("%d vectors", len(all))
	}
	for i, vec := range all {
		msg, sig := decode(vec.Msg), decode(vec.Sig)
		u := decode(vec.Public)
		if vec.Public == "" { // one of Signal's own tests has only the private key
			u = publicOf(t, decode(vec.Private))
		}
		key, err := ParsePublicKey(recipientText(u))
		if err != nil {
			t.Errorf("vector %d: %v", i, err)
			continue
		}
		signBits[sig[63]>>7]++
		if err := key.Verify(msg, encodeBase64(sig), Window{}, time.Time{}); err != nil {
			t.Errorf("vector %d: %v", i, err)
		}
		if vec.Z != "" {
			got, err := signXEdDSA(decode(vec.Private), msg, decode(vec.Z))
			if err != nil || !bytes.Equal(got, sig) {
				t.Errorf("vector %d: signed %x, %v, want %x", i, got, err, sig)
			}
		}
		for name, at := range map[string]int{"R": 5, "S": 40, "sign bit": 63} {
			forged := slices.Clone(sig)
			forged[at] ^= 0x80
			if err := key.Verify(msg, encodeBase64(forged), Window{}, time.Time{}); !errors.Is(err, ErrBadSignature) {
				t.Errorf("vector %d with another %s: %v", i, name, err)
			}
		}
		if err := key.Verify(append(msg, 0), encodeBase64(sig), Window{}, time.Time{}); !errors.Is(err, ErrBadSignature) {
			t.Errorf("vector %d with a longer message: %v", i, err)
		}
	}
	if signBits[0] == 0 || signBits[1] == 0 {
		t.Errorf("not both dialects were seen: %v", signBits)
	}
}

// publicOf returns the u-coordinate of an X25519 private key.
func publicOf(t *testing.T, private []byte) []byte {
	t.Helper()
	key, err := ecdh.X25519().NewPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return key.PublicKey().Bytes()
}

// TestXEdDSASigns checks that our signatures have the form of the paper with the sign bit zero, and verify with keys of
// both signs.
func TestXEdDSASigns(t *testing.T) {
	for range 20 {
		key := newAgeKey(t)
		first, err := key.Sign([]byte("data"))
		if err != nil {
			t.Fatal(err)
		}
		second, err := key.Sign([]byte("data"))
		if err != nil || first == second {
			t.Error("two signatures share their nonce")
		}
		raw, _ := decodeBase64(first)
		if raw[63]&0xe0 != 0 {
			t.Errorf("the last byte is %x: not the paper's form", raw[63])
		}
		public, err := ParsePublicKey(key.PublicText())
		if err != nil {
			t.Fatal(err)
		}
		if err := public.Verify([]byte("data"), first, Window{}, time.Time{}); err != nil {
			t.Error(err)
		}
	}
}

// TestXEdDSANegatives checks AM-8 for age keys: u of low order, u that is not canonical, u on the twist, and damaged or
// foreign bech32.
func TestXEdDSANegatives(t *testing.T) {
	p := fieldP
	minusOne := new(big.Int).Sub(p, big.NewInt(1))
	order8 := func(s string) *big.Int { n, _ := new(big.Int).SetString(s, 10); return n }
	refused := map[string]*big.Int{
		"u = 0":           big.NewInt(0),
		"u = 1":           big.NewInt(1),
		"u = -1":          minusOne,
		"order 8":         order8("325606250916557431795983626356110631294008115727848805560023387167927233504"),
		"order 8, other":  order8("39382357235489614581723060781553021112529911719440698176882885853963445705823"),
		"u = p":           p,
		"u = p+1":         new(big.Int).Add(p, big.NewInt(1)),
		"u = p+9":         new(big.Int).Add(p, big.NewInt(9)),
		"u = 2^255-1":     new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(1)),
		"base, top bit":   new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(9)),
		"u = 2, on twist": big.NewInt(2),
	}
	for name, u := range refused {
		key, err := ParsePublicKey(recipientText(littleEndian(u)))
		if _, ok := errors.AsType[*KeyError](err); !ok {
			t.Errorf("%s: ParsePublicKey = %v, %v", name, key, err)
		}
	}
	if _, err := ParsePublicKey(recipientText(littleEndian(big.NewInt(9)))); err != nil {
		t.Errorf("the base point, which is a good key: %v", err)
	}

	good := newAgeKey(t).PublicText()
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	swap := map[bool]byte{true: 'p', false: 'q'}
	for name, text := range map[string]string{
		"post-quantum":      hybrid.Recipient().String(),
		"checksum":          good[:len(good)-1] + string(swap[good[len(good)-1] == 'q']),
		"upper case":        strings.ToUpper(good),
		"mixed case":        good[:10] + strings.ToUpper(good[10:]),
		"cut":               good[:len(good)-3],
		"two recipients":    good + "\n" + good,
		"comment":           good + " # mine",
		"plugin":            "age1yubikey1qwt50d05nh5vutpdzmlg5wn80xq5negm4uj9ghv0snvdd3yysf5yw3rhl3t",
		"31 bytes":          recipientText(make([]byte, 31)),
		"33 bytes":          recipientText(bytes.Repeat([]byte{9}, 33)),
		"kelvin sign":       strings.Replace(good, "k", "\u212a", 1) + "\u212a",
		"private":           mustText(newAgeKey(t)),
		"private lowercase": strings.ToLower(mustText(newAgeKey(t))),
	} {
		if key, err := ParsePublicKey(text); err == nil {
			t.Errorf("%s: ParsePublicKey(%s) = %v", name, text, key)
		} else if _, ok := errors.AsType[*KeyError](err); !ok {
			t.Errorf("%s: %T", name, err)
		}
	}
}

func mustText(k *PrivateKey) string {
	text, err := k.MarshalText()
	if err != nil {
		panic(err)
	}
	return string(text)
}
