package signing

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// keyOfEachKind returns one private key of each kind.
func keyOfEachKind(t testing.TB) []*PrivateKey {
	t.Helper()
	pgp, err := ParsePrivateKey([]byte(privateArmor(t, newEntity(t, nil))))
	if err != nil {
		t.Fatal(err)
	}
	return []*PrivateKey{benchKey(), newAgeKey(t), pgp}
}

// TestDiagonal checks AM-8 and THREATS row 6, with every kind of key against every kind of signature and two keys of
// the same kind: a signature verifies only with the key that made it.
func TestDiagonal(t *testing.T) {
	keys, others := keyOfEachKind(t), keyOfEachKind(t)
	others[0] = NewEd25519FromSeed(bytes.Repeat([]byte{1}, 32))
	for _, signer := range slices.Concat(keys, others) {
		sig, err := signer.Sign([]byte("data"))
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			err := key.Public().Verify([]byte("data"), sig, AnyTime(), time.Now())
			if diagonal := signer == key; (err == nil) != diagonal {
				t.Errorf("a signature of %s under %s: %v", signer.Public().Kind(), key.Public().Kind(), err)
			}
		}
	}
}

// TestSameBytesOtherKind checks that the 32 bytes of a key, read as the other kind, are another key with another id.
func TestSameBytesOtherKind(t *testing.T) {
	age := newAgeKey(t)
	sig, err := age.Sign([]byte("data"))
	if err != nil {
		t.Fatal(err)
	}
	asEd25519, err := ParsePublicKey("ed25519:" + hex.EncodeToString(age.Public().Canonical()))
	if err != nil {
		t.Skip("these bytes are not a point of Ed25519")
	}
	if asEd25519.Fingerprint() == age.Public().Fingerprint() {
		t.Error("two kinds share a fingerprint")
	}
	if asEd25519.Verify([]byte("data"), sig, Window{}, time.Now()) == nil {
		t.Error("the XEdDSA signature verifies as Ed25519 under u")
	}
}

func TestParsePublicKeyRefuses(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecDER, err := x509.MarshalPKIXPublicKey(&ec.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	key := benchKey()
	good, point := key.PublicText(), key.Public().Canonical()
	spki := append(slices.Clone(spkiPrefix), point...)
	block := func(typ string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}))
	}
	b64 := base64.StdEncoding.EncodeToString(point)
	ssh := func(blob string) string { return "ssh-ed25519 " + base64.StdEncoding.EncodeToString([]byte(blob)) }
	for name, text := range map[string]string{
		"empty":                  "",
		"white space":            " \n",
		"prose":                  "my key",
		"private PEM":            mustText(key),
		"private OpenSSH":        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
		"encrypted PEM":          "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----",
		"two PEM blocks":         good + good,
		"public and private PEM": good + mustText(key),
		"text after PEM":         good + "x",
		"PEM of P-256":           block("PUBLIC KEY", ecDER),
		"PEM with a header":      strings.Replace(good, "-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
		"PEM cut":                good[:60],
		"PEM of another type":    block("CERTIFICATE", spki),
		"PEM with DER after":     block("PUBLIC KEY", append(slices.Clone(spki), 0)),
		"PEM one byte short":     block("PUBLIC KEY", spki[:43]),
		"PEM of Ed448":           block("PUBLIC KEY", append([]byte{0x30, 0x43, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x71, 0x03, 0x3a, 0x00}, make([]byte, 57)...)),
		"PEM of X25519":          block("PUBLIC KEY", append([]byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x03, 0x21, 0x00}, point...)),
		"ed25519: empty":         "ed25519:",
		"ed25519: 31 bytes":      "ed25519:" + base64.StdEncoding.EncodeToString(point[:31]),
		"ed25519: 33 bytes":      "ed25519:" + base64.StdEncoding.EncodeToString(append(slices.Clone(point), 0)),
		"ed25519: 64 bytes":      "ed25519:" + base64.StdEncoding.EncodeToString(append(slices.Clone(point), point...)),
		"ed25519: bad hex":       "ed25519:" + strings.Repeat("g", 64),
		"ed25519: short hex":     "ed25519:" + hex.EncodeToString(point[:31]),
		"ed25519: blank":         "ed25519: " + b64,
		"Ed25519:":               "Ed25519:" + b64,
		"x25519:":                "x25519:" + b64,
		"bare hex":               hex.EncodeToString(point),
		"bare with LF inside":    b64[:20] + "\n" + b64[20:],
		"two bare":               b64 + " " + b64,
		"ssh-rsa":                strings.Replace(ssh(sshPrefix+string(point)), "ssh-ed25519", "ssh-rsa", 1),
		"ssh without a key":      "ssh-ed25519 ",
		"ssh cut":                ssh(sshPrefix + string(point[:31])),
		"ssh long":               ssh(sshPrefix + string(point) + "x"),
		"ssh of another blob":    ssh("\x00\x00\x00\x07ssh-rsa" + string(point)),
		"ssh two lines":          ssh(sshPrefix+string(point)) + "\n" + ssh(sshPrefix+string(point)),
		"ssh sk key":             "sk-ssh-ed25519@openssh.com AAAA",
		"32 KiB and one":         good + strings.Repeat("\n", MaxKeyText-len(good)+1),
		"NUL":                    b64 + "\x00",
	} {
		key, err := ParsePublicKey(text)
		refused, ok := errors.AsType[*KeyError](err)
		if !ok {
			t.Errorf("%s: ParsePublicKey = %v, %v", name, key, err)
			continue
		}
		if secret := strings.TrimSpace(text); len(secret) > 20 && strings.Contains(err.Error(), secret[len(secret)-20:]) {
			t.Errorf("%s: the error quotes the key: %v", name, err)
		}
		if refused.Reason == "" || strings.HasSuffix(refused.Reason, ".") {
			t.Errorf("%s: reason %q", name, refused.Reason)
		}
	}
	if _, err := ParsePublicKey(good + strings.Repeat("\n", MaxKeyText-len(good))); err != nil {
		t.Errorf("32 KiB exactly: %v", err)
	}
}

// TestKeyNames checks the fingerprint and the derived id (AM-2) of each kind against independent computations.
func TestKeyNames(t *testing.T) {
	seen := map[string]bool{}
	for i, k := range keyOfEachKind(t) {
		p := k.Public()
		if want := []Kind{KindEd25519, KindAge, KindOpenPGP}[i]; p.Kind() != want {
			t.Errorf("kind %s, want %s", p.Kind(), want)
		}
		if want := wire.DeriveAgentID(p.Canonical()); p.AgentID() != want || !want.Valid() {
			t.Errorf("%s: AgentID = %s, want %s", p.Kind(), p.AgentID(), want)
		}
		kind, sum, _ := strings.Cut(p.Fingerprint(), ":")
		if kind != string(p.Kind()) || len(sum) != 64 || sum != strings.ToLower(sum) || seen[sum] {
			t.Errorf("Fingerprint = %s", p.Fingerprint())
		}
		seen[sum] = true
		p.Canonical()[0] ^= 0xff
		if wire.DeriveAgentID(p.Canonical()) != p.AgentID() {
			t.Error("Canonical gives away the key's own bytes")
		}
	}
	zeros := NewEd25519FromSeed(make([]byte, 32)).Public()
	if got := hex.EncodeToString(zeros.Canonical()); got != "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29" {
		t.Errorf("the key of the zero seed is %s", got)
	}
}

// TestVerifyValue checks that a signature covers the tree as received, with unknown fields and without the signature
// (AM-13).
func TestVerifyValue(t *testing.T) {
	message := mustParse(t, strings.TrimSuffix(benchMessage, "}")+`,"x_unknown":{"signature":"stays"}}`)
	for _, key := range keyOfEachKind(t) {
		kind := key.Public().Kind()
		signed, err := key.SignValue(message)
		if err != nil {
			t.Fatal(err)
		}
		members := signed.Members()
		if last := members[len(members)-1]; last.Key != "signature" || len(members) != message.Len()+1 {
			t.Errorf("%s: the signature is not the last member", kind)
		}
		sig := signed.GetStr("signature")
		tree := mustParse(t, string(signed.JSON())).Without("signature")
		got, err := key.Public().VerifyValue(tree, sig, AnyTime(), time.Now())
		if err != nil || got.Form != JCS || !bytes.Equal(got.Canonical, Canonical(message, JCS)) || got.Digest != Digest(message) {
			t.Errorf("%s: VerifyValue = %s, %v", kind, got.Form, err)
		}
		again, err := key.SignValue(signed)
		if err != nil || again.Len() != signed.Len() {
			t.Errorf("%s: signing twice leaves %d members, %v", kind, again.Len(), err)
		}
		for name, changed := range map[string]wire.Value{
			"to":                 tree.With("to", wire.Text("am_other")),
			"agentmesh":          tree.With("agentmesh", wire.Text("0.1.1")),
			"from":               tree.With("from", wire.Text("am_other")),
			"another field":      tree.With("extra", wire.Text("x")),
			"a field less":       tree.Without("x_unknown"),
			"with the signature": signed,
			"nested signature":   tree.With("x_unknown", wire.Obj()),
			"another case":       tree.Without("to").With("TO", wire.Text("am_6512bd43d9caa6e0")),
		} {
			if _, err := key.Public().VerifyValue(changed, sig, AnyTime(), time.Now()); !errors.Is(err, ErrBadSignature) {
				t.Errorf("%s: %s changed: %v", kind, name, err)
			}
		}
	}
	if _, err := benchKey().SignValue(wire.Arr()); err == nil {
		t.Error("an array was signed")
	}
}

// TestVerifyValueForms checks that a signature over any form of AM-14 verifies, and that the digest is that of the form
// (AM-21).
func TestVerifyValueForms(t *testing.T) {
	key := benchKey()
	v := mustParse(t, "{\"10\":1.0,\"2\":\"<é\u2028\",\"a\":null}")
	for _, f := range Forms() {
		text := Canonical(v, f)
		sig, err := key.Sign(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := key.Public().VerifyValue(v, sig, Window{}, time.Time{})
		if err != nil || got.Form != f || !bytes.Equal(got.Canonical, text) {
			t.Errorf("signed as %s: VerifyValue = %s, %v", f, got.Form, err)
		}
		if (got.Digest == Digest(v)) != (f == JCS) {
			t.Errorf("signed as %s: the digest is not that form's", f)
		}
	}
	if sig, _ := key.Sign([]byte("{ }")); sig != "" {
		if _, err := key.Public().VerifyValue(wire.Obj(), sig, Window{}, time.Time{}); !errors.Is(err, ErrBadSignature) {
			t.Errorf("a sixth form: %v", err)
		}
	}
}

func TestKeyCache(t *testing.T) {
	cache := NewKeyCache(2)
	first := benchKey().PublicText()
	key, err := cache.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := cache.Parse(first); err != nil || again != key {
		t.Errorf("not remembered: %v", err)
	}
	for i := range byte(3) {
		if _, err := cache.Parse(NewEd25519FromSeed(bytes.Repeat([]byte{i + 1}, 32)).PublicText()); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := cache.Parse(first); err != nil || again == key {
		t.Errorf("the cache of two holds a fourth key: %v", err)
	}
	for _, bad := range []string{"", "x", strings.Repeat("A", MaxKeyText+1)} {
		for range 2 {
			if _, err := cache.Parse(bad); err == nil {
				t.Errorf("Parse(%.10q) accepted", bad)
			}
		}
	}
}

// FuzzParsePublicKey checks that no text makes the parser panic, that every error is a *KeyError, and that an accepted
// key has a valid name.
func FuzzParsePublicKey(f *testing.F) {
	for _, k := range keyOfEachKind(f) {
		f.Add(k.PublicText())
		f.Add(mustText(k))
	}
	for _, text := range spellings(benchKey().Public().Canonical()) {
		f.Add(text)
	}
	f.Add("age1pq1xyz")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := ParsePublicKey(text)
		if err != nil {
			if _, ok := errors.AsType[*KeyError](err); !ok {
				t.Fatalf("ParsePublicKey = %T", err)
			}
			return
		}
		if !key.AgentID().Valid() || len(key.Canonical()) < 32 {
			t.Fatalf("accepted with id %s", key.AgentID())
		}
		key.Usable(time.Now())
	})
}

// FuzzVerify checks that no signature text makes a verifier panic, and that no text the fuzzer finds verifies.
func FuzzVerify(f *testing.F) {
	keys := keyOfEachKind(f)
	for _, k := range keys {
		sig, err := k.Sign([]byte("data"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(sig)
		f.Add(strings.TrimRight(sig, "="))
	}
	f.Add(armorParts(f, armorSig, []byte{0xc2, 0x01, 0x04}))
	f.Fuzz(func(t *testing.T, sig string) {
		for _, k := range keys {
			if err := k.Public().Verify([]byte("other data"), sig, AnyTime(), time.Now()); !errors.Is(err, ErrBadSignature) {
				t.Fatalf("%s: Verify(%q) = %v", k.Public().Kind(), sig, err)
			}
		}
	})
}
