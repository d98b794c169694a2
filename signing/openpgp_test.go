package signing

import (
	"bytes"
	"crypto"
	_ "crypto/sha3"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
)

// The times of all cases: keys are made at born, signatures are made at made, and all are verified at now.
var (
	born   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	made   = time.Date(2026, 2, 19, 10, 30, 0, 0, time.UTC)
	now    = made.Add(2 * time.Minute)
	window = Window{From: made.Add(-15 * time.Minute), To: made.Add(5 * time.Minute)}
	data   = []byte(`{"from":"am_a","to":"am_b"}`)
)

// unsalted lets the library sign with hashes for which it has no salt size.
var unsalted = &packet.Config{NonDeterministicSignaturesViaNotation: new(false)}

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

// pgpConfigs returns the algorithms of keys whose signatures we accept.
func pgpConfigs() map[string]*packet.Config {
	return map[string]*packet.Config{
		"v4 EdDSA":       {Time: at(born), Algorithm: packet.PubKeyAlgoEdDSA},
		"v4 Ed25519":     {Time: at(born), Algorithm: packet.PubKeyAlgoEd25519},
		"v4 EdDSA 448":   {Time: at(born), Algorithm: packet.PubKeyAlgoEdDSA, Curve: packet.Curve448},
		"v4 RSA 2048":    {Time: at(born), Algorithm: packet.PubKeyAlgoRSA, RSABits: 2048},
		"v4 ECDSA P-256": {Time: at(born), Algorithm: packet.PubKeyAlgoECDSA, Curve: packet.CurveNistP256},
		"v4 ECDSA P-521": {Time: at(born), Algorithm: packet.PubKeyAlgoECDSA, Curve: packet.CurveNistP521},
		"v6 Ed25519":     {Time: at(born), Algorithm: packet.PubKeyAlgoEd25519, V6Keys: true},
		"v6 Ed448":       {Time: at(born), Algorithm: packet.PubKeyAlgoEd448, V6Keys: true},
		"v6 RSA 2048":    {Time: at(born), Algorithm: packet.PubKeyAlgoRSA, RSABits: 2048, V6Keys: true},
	}
}

// newEntity makes a key. A nil config means the usual algorithm.
func newEntity(t testing.TB, config *packet.Config) *openpgp.Entity {
	t.Helper()
	if config == nil {
		config = pgpConfigs()["v4 EdDSA"]
	}
	e, err := openpgp.NewEntity("Alice", "", "alice@example.com", config)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func armorParts(t testing.TB, blockType string, parts ...[]byte) string {
	t.Helper()
	var out bytes.Buffer
	w, err := armor.Encode(&out, blockType, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func serialize(t testing.TB, e *openpgp.Entity) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := e.Serialize(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func publicArmor(t testing.TB, e *openpgp.Entity) string {
	return armorParts(t, armorPublic, serialize(t, e))
}

func privateArmor(t testing.TB, e *openpgp.Entity) string {
	t.Helper()
	var out bytes.Buffer
	if err := e.SerializePrivateWithoutSigning(&out, nil); err != nil {
		t.Fatal(err)
	}
	return armorParts(t, armorPrivate, out.Bytes())
}

// signDetached makes a detached signature of data with go-crypto.
func signDetached(t testing.TB, e *openpgp.Entity, config packet.Config, text bool) []byte {
	t.Helper()
	if config.Time == nil {
		config.Time = at(made)
	}
	var out bytes.Buffer
	params := &openpgp.SignParams{TextSig: text, Config: &config}
	if err := openpgp.DetachSignWithParams(&out, []*openpgp.Entity{e}, bytes.NewReader(data), params); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// signPacket makes a signature packet that the calls of go-crypto cannot make, with another hash or another type.
func signPacket(t testing.TB, e *openpgp.Entity, hash crypto.Hash, sigType packet.SignatureType) []byte {
	t.Helper()
	lifetime := uint32(0)
	sig := &packet.Signature{Version: e.PrimaryKey.Version, SigType: sigType, PubKeyAlgo: e.PrimaryKey.PubKeyAlgo, Hash: hash,
		CreationTime: made, IssuerKeyId: &e.PrimaryKey.KeyId, IssuerFingerprint: e.PrimaryKey.Fingerprint, SigLifetimeSecs: &lifetime}
	h := hash.New()
	h.Write(data)
	if err := sig.Sign(h, e.PrivateKey, unsalted); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := sig.Serialize(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func mustKey(t testing.TB, text string) *PublicKey {
	t.Helper()
	key, err := ParsePublicKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestOpenPGPAlgorithms(t *testing.T) {
	for name, config := range pgpConfigs() {
		t.Run(name, func(t *testing.T) {
			e := newEntity(t, config)
			key := mustKey(t, publicArmor(t, e))
			if key.Kind() != KindOpenPGP || !strings.HasPrefix(key.Fingerprint(), "openpgp:") || !key.AgentID().Valid() {
				t.Errorf("kind %s, fingerprint %s, id %s", key.Kind(), key.Fingerprint(), key.AgentID())
			}
			if err := key.Usable(now); err != nil {
				t.Error(err)
			}
			sig := signDetached(t, e, packet.Config{}, false)
			for spelling, text := range map[string]string{"base64": encodeBase64(sig), "unpadded": strings.TrimRight(encodeBase64(sig), "="),
				"armor": armorParts(t, armorSig, sig)} {
				if err := key.Verify(data, text, window, now); err != nil {
					t.Errorf("%s: %v", spelling, err)
				}
			}
			if err := key.Verify(append(data, ' '), encodeBase64(sig), window, now); !errors.Is(err, ErrBadSignature) {
				t.Errorf("other data: %v", err)
			}
		})
	}
}

// TestOpenPGPSignatures checks AM-9, AM-17 and THREATS row 9 for signatures of a good key.
func TestOpenPGPSignatures(t *testing.T) {
	e := newEntity(t, nil)
	key := mustKey(t, publicArmor(t, e))
	good := signDetached(t, e, packet.Config{}, false)
	later := func(d time.Duration) []byte { return signDetached(t, e, packet.Config{Time: at(made.Add(d))}, false) }
	v6 := newEntity(t, pgpConfigs()["v6 Ed25519"])
	tests := []struct {
		name, sig string
		ok        bool
	}{
		{"good", encodeBase64(good), true},
		{"SHA-384", encodeBase64(signPacket(t, e, crypto.SHA384, packet.SigTypeBinary)), true},
		{"SHA-512", encodeBase64(signPacket(t, e, crypto.SHA512, packet.SigTypeBinary)), true},
		{"SHA3-256", encodeBase64(signPacket(t, e, crypto.SHA3_256, packet.SigTypeBinary)), true},
		{"SHA3-512", encodeBase64(signPacket(t, e, crypto.SHA3_512, packet.SigTypeBinary)), true},
		{"SHA-224", encodeBase64(signPacket(t, e, crypto.SHA224, packet.SigTypeBinary)), false},
		{"SHA-1", encodeBase64(signPacket(t, e, crypto.SHA1, packet.SigTypeBinary)), false},
		{"text mode", encodeBase64(signDetached(t, e, packet.Config{}, true)), false},
		{"standalone type", encodeBase64(signPacket(t, e, crypto.SHA256, 0x02)), false},
		{"certification type", encodeBase64(signPacket(t, e, crypto.SHA256, packet.SigTypePositiveCert)), false},
		{"two signatures", encodeBase64(append(slices.Clone(good), good...)), false},
		{"two signatures, second by another", encodeBase64(append(slices.Clone(good), signDetached(t, newEntity(t, nil), packet.Config{}, false)...)), false},
		{"a marker packet after", encodeBase64(append(slices.Clone(good), 0xca, 3, 'P', 'G', 'P')), false},
		{"a marker packet before", encodeBase64(append([]byte{0xca, 3, 'P', 'G', 'P'}, good...)), false},
		{"a padding packet after", encodeBase64(append(slices.Clone(good), 0xd5, 1, 0)), false},
		{"a byte after", encodeBase64(append(slices.Clone(good), 0)), false},
		{"cut", encodeBase64(good[:len(good)-1]), false},
		{"by another key", encodeBase64(signDetached(t, newEntity(t, nil), packet.Config{}, false)), false},
		{"of version 6", encodeBase64(signDetached(t, v6, packet.Config{}, false)), false},
		{"at the start of the window", encodeBase64(later(-15 * time.Minute)), true},
		{"before the window", encodeBase64(later(-15*time.Minute - time.Second)), false},
		{"at the end of the window", encodeBase64(later(5 * time.Minute)), true},
		{"after the window", encodeBase64(later(5*time.Minute + time.Second)), false},
		{"expired", encodeBase64(signDetached(t, e, packet.Config{SigLifetimeSecs: 60}, false)), false},
		{"expires later", encodeBase64(signDetached(t, e, packet.Config{SigLifetimeSecs: 600}, false)), true},
		{"an unknown critical notation", encodeBase64(signDetached(t, e, packet.Config{SignatureNotations: []*packet.Notation{{Name: "x@example.com", IsCritical: true}}}, false)), false},
		{"armor", armorParts(t, armorSig, good), true},
		{"armor of two", armorParts(t, armorSig, good, good), false},
		{"two armors", armorParts(t, armorSig, good) + armorParts(t, armorSig, good), false},
		{"armor of a message", armorParts(t, "PGP MESSAGE", good), false},
		{"blank before armor", "\n" + armorParts(t, armorSig, good), false},
		{"base64 with LF", encodeBase64(good) + "\n", false},
		{"64 bytes of Ed25519", encodeBase64(make([]byte, 64)), false},
		{"empty", "", false},
		{"a key", encodeBase64(serialize(t, e)), false},
		{"very long", strings.Repeat("A", 1<<20), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := key.Verify(data, tt.sig, window, now)
			if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrBadSignature) {
				t.Errorf("Verify = %v, want ok %v", err, tt.ok)
			}
		})
	}
	half := window
	half.From = half.From.Add(500 * time.Millisecond) // the times in signatures are whole seconds
	if err := key.Verify(data, encodeBase64(later(-15*time.Minute)), half, now); err != nil {
		t.Errorf("a window that begins within the second of the signature: %v", err)
	}
}

// TestGnuPG verifies signatures of gpg 2.2.40 from testdata/gpg.json: three keys without a passphrase, made with
// --faked-system-time 20260101T000000!, and their detached signatures of 20260219T103000!, made with the default
// options, with --textmode and with --digest-algo SHA1.
func TestGnuPG(t *testing.T) {
	var file struct {
		Data string
		Made time.Time
		Keys []struct {
			Name                  string
			PublicKey             string `json:"public_key"`
			Signature, Text, SHA1 string
		}
	}
	if err := json.Unmarshal(readFile(t, filepath.Join("testdata", "gpg.json")), &file); err != nil {
		t.Fatal(err)
	}
	w := Window{file.Made, file.Made}
	for _, k := range file.Keys {
		key := mustKey(t, k.PublicKey)
		if err := key.Verify([]byte(file.Data), k.Signature, w, file.Made); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		for name, sig := range map[string]string{"text mode": k.Text, "SHA-1": k.SHA1} {
			if err := key.Verify([]byte(file.Data), sig, w, file.Made); !errors.Is(err, ErrBadSignature) {
				t.Errorf("%s, %s: %v", k.Name, name, err)
			}
		}
	}
	if len(file.Keys) != 3 {
		t.Errorf("%d keys", len(file.Keys))
	}
}

// TestOpenPGPCorpus reads keys of other programs. The value is "" if we accept the key, or a part of the reason.
func TestOpenPGPCorpus(t *testing.T) {
	dir := corpora(t, "openpgp")
	for file, reason := range map[string]string{
		"draft-bre-openpgp-samples-00/bob.pub.asc": "",
		"draft-bre-openpgp-samples-00/bob.sec.asc": "private key",
		"carol.pub.asc":                                                    "algorithm", // DSA
		"rfc9580_A3_v6_certificate.asc":                                    "",
		"rfc9580_A6_v6_cleartext_signed.asc":                               "known kind",
		"openpgp/samplemsgs/revoke-2D727CC768697734.asc":                   "begin",
		"openpgp-interop/testcases/keys/e2e-001.asc":                       "",
		"openpgp-interop/testcases/keys/gnupg-v1-001.asc":                  "algorithm",      // DSA
		"openpgp-interop/testcases/keys/gnupg-v1-003.asc":                  "self-signature", // SHA-1
		"openpgp-interop/testcases/keys/openkeychain-001.asc":              "may sign",       // signs with DSA only
		"openpgp-interop/testcases/keys/pgp-6-5-001.asc":                   "algorithm",
		"openpgp-interop/testcases/keys/uid-001.asc":                       "self-signature", // SHA-1
		"openpgp-interop/testcases/messages/gnupg-v1-001-verify.asc":       "2048 to 4096",
		"openpgp-interop/testcases/messages/gnupg-v1-001-decrypt.asc":      "private key",
		"openpgp-interop/testcases/messages/gnupg-v2-1-5-001-verify.asc":   "",
		"openpgp-interop/testcases/messages/e2e-001-verify.asc":            "",
		"openpgp-interop/testcases/messages/openkeychain-001-verify.asc":   "",
		"openpgp-interop/testcases/messages/gnupg-v2-1-5-002-decrypt.asc":  "private key",
		"openpgp-interop/testcases/messages/camellia128-001.asc":           "known kind",
		"openpgp-interop/testcases/messages/gnupg-v1-4-11-001-decrypt.asc": "private key",
		"openpgp-interop/testcases/messages/gnupg-v2-1-5-003-verify.asc":   "",
		"openpgp-interop/testcases/messages/openkeychain-001-decrypt.asc":  "private key",
		"openpgp/samplemsgs/sig-1-key-1.asc":                               "known kind",
		"openpgp/samplemsgs/clearsig-1-key-1.asc":                          "known kind",
	} {
		key, err := ParsePublicKey(string(readFile(t, filepath.Join(dir, file))))
		if err == nil {
			err = key.Usable(now)
		}
		switch refused, ok := errors.AsType[*KeyError](err); {
		case reason == "" && err != nil:
			t.Errorf("%s: %v", file, err)
		case reason != "" && (!ok || !strings.Contains(refused.Reason, reason)):
			t.Errorf("%s: %v, want %q", file, err, reason)
		}
	}
	v6 := mustKey(t, string(readFile(t, filepath.Join(dir, "rfc9580_A3_v6_certificate.asc"))))
	if body := v6.Canonical(); body[0] != 6 || len(body) != 42 {
		t.Errorf("the canonical bytes of the v6 key are %x", body)
	}
}

// TestOpenPGPConcurrent uses one parsed key in many goroutines, for the race detector.
func TestOpenPGPConcurrent(t *testing.T) {
	private, err := ParsePrivateKey([]byte(privateArmor(t, newEntity(t, nil))))
	if err != nil {
		t.Fatal(err)
	}
	key := mustKey(t, private.PublicText())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			sig, err := private.Sign(data)
			if err != nil {
				t.Error(err)
			}
			if err := key.Verify(data, sig, AnyTime(), time.Now()); err != nil {
				t.Error(err)
			}
			if err := key.Usable(time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
