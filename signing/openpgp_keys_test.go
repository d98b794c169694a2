package signing

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"errors"
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	pgped25519 "github.com/ProtonMail/go-crypto/openpgp/ed25519"
	pgped448 "github.com/ProtonMail/go-crypto/openpgp/ed448"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
)

// TestOpenPGPKeys checks AM-8 and THREATS row 9 for keys: each bad key is refused when it is parsed or when it is
// evaluated now, and no signature verifies with it.
func TestOpenPGPKeys(t *testing.T) {
	day := uint32(24 * 3600)
	good := newEntity(t, nil)
	rsaOnly := &packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoRSA, RSABits: 2048}
	modify := func(change func(e *openpgp.Entity)) string {
		e := newEntity(t, nil)
		change(e)
		return publicArmor(t, e)
	}
	revoke := func(reason packet.ReasonForRevocation, when time.Time) string {
		return modify(func(e *openpgp.Entity) {
			if err := e.Revoke(reason, "", &packet.Config{Time: at(when)}); err != nil {
				t.Fatal(err)
			}
		})
	}
	point := func(raw []byte, v6 bool) string {
		config := &packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoEd25519, V6Keys: v6}
		if len(raw) == 57 {
			config.Algorithm = packet.PubKeyAlgoEd448
		}
		e := newEntity(t, config)
		switch k := e.PrimaryKey.PublicKey.(type) {
		case *pgped25519.PublicKey:
			k.Point = raw
		case *pgped448.PublicKey:
			k.Point = raw
		}
		return publicArmor(t, e)
	}
	literal := []byte{0xc0 | 11, 6, 'b', 0, 0, 0, 0, 0}
	compressed := []byte{0xc0 | 8, 1, 0}
	body := serialize(t, good)

	tests := []struct {
		name, text string
		parses     bool   // refused only when it is evaluated at a time
		reason     string // a part of the reason
	}{
		{"private block", privateArmor(t, good), false, "private"},
		{"private packets in a public block", armorParts(t, armorPublic, privateBytes(t, good)), false, "private"},
		{"two entities", armorParts(t, armorPublic, body, serialize(t, newEntity(t, nil))), false, "more than one"},
		{"the same entity twice", armorParts(t, armorPublic, body, body), false, "more than one"},
		{"two blocks", publicArmor(t, good) + "\n" + publicArmor(t, newEntity(t, nil)), false, "armor"},
		{"text before", "hello\n" + publicArmor(t, good), false, "known kind"},
		{"text after", publicArmor(t, good) + "\nhello", false, "armor"},
		{"a signature block", armorParts(t, armorSig, signDetached(t, good, packet.Config{}, false)), false, "known kind"},
		{"cut armor", publicArmor(t, good)[:300], false, "armor"},
		{"empty armor", armorParts(t, armorPublic), false, "armor"},
		{"garbage in armor", armorParts(t, armorPublic, []byte("garbage")), false, "damaged"},
		{"a literal packet inside", armorParts(t, armorPublic, body, literal), false, "does not belong in a key"},
		{"a compressed packet inside", armorParts(t, armorPublic, body, compressed), false, "does not belong in a key"},
		{"signature first", armorParts(t, armorPublic, signDetached(t, good, packet.Config{}, false), body), false, "begin"},
		{"101 signatures", armorParts(t, armorPublic, body, bytes.Repeat(signDetached(t, good, packet.Config{}, false), 101)), false, "too many"},
		{"junk in the primary packet", armorParts(t, armorPublic, withJunk(t, body)), false, "canonically"},
		{"RSA 1024", publicArmor(t, rsaOfSize(t, rsaOnly, 1024)), false, "2048 to 4096"},
		{"RSA 2047", publicArmor(t, rsaOfSize(t, rsaOnly, 2047)), false, "2048 to 4096"},
		{"RSA 4097", publicArmor(t, rsaOfSize(t, rsaOnly, 4097)), false, "2048 to 4096"},
		{"RSA 16384", publicArmor(t, rsaOfSize(t, rsaOnly, 16384)), false, "2048 to 4096"},
		{"identity point, v4", point(append([]byte{1}, make([]byte, 31)...), false), false, "low order"},
		{"identity point, v6", point(append([]byte{1}, make([]byte, 31)...), true), false, "low order"},
		{"y = p", point(littleEndian(fieldP), true), false, "canonically"},
		{"Ed448 identity", point(append([]byte{1}, make([]byte, 56)...), true), false, "low order"},
		{"Ed448 zero", point(make([]byte, 57), true), false, "low order"},
		{"Ed448 loose bits", point(append(bytes.Repeat([]byte{7}, 56), 0x7f), true), false, "low order"},
		{"brainpool", publicArmor(t, newEntity(t, &packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoECDSA, Curve: packet.CurveBrainpoolP256})), false, "algorithm"},
		{"secp256k1", publicArmor(t, newEntity(t, &packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoECDSA, Curve: packet.CurveSecP256k1})), false, "algorithm"},

		{"expired", publicArmor(t, newEntity(t, &packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoEdDSA, KeyLifetimeSecs: day})), true, "expired"},
		{"expired, v6", publicArmor(t, newEntity(t, &packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoEd25519, KeyLifetimeSecs: day, V6Keys: true})), true, "expired"},
		{"expired between signature and now", publicArmor(t, newEntity(t, &packet.Config{Time: at(made.Add(-23*time.Hour - 59*time.Minute)),
			Algorithm: packet.PubKeyAlgoEdDSA, KeyLifetimeSecs: day})), true, "expired"},
		{"not yet born", publicArmor(t, newEntity(t, &packet.Config{Time: at(now.Add(time.Hour)), Algorithm: packet.PubKeyAlgoEdDSA})), true, ""},
		{"revoked, compromised", revoke(packet.KeyCompromised, born.Add(time.Hour)), true, "revoked"},
		{"revoked, retired", revoke(packet.KeyRetired, born.Add(time.Hour)), true, "revoked"},
		{"revoked after the signature", revoke(packet.KeyRetired, made.Add(time.Minute)), true, "revoked"},
		{"user id revoked", modify(func(e *openpgp.Entity) { revokeUserID(t, e, made.Add(-time.Hour)) }), true, "self-signature"},
		{"SHA-1 self-signature", modify(func(e *openpgp.Entity) { resign(t, e, crypto.SHA1) }), true, "self-signature"},
		{"SHA-224 self-signature", modify(func(e *openpgp.Entity) { resign(t, e, crypto.SHA224) }), true, "self-signature"},
		{"self-signature by another key", modify(func(e *openpgp.Entity) {
			other := newEntity(t, nil)
			for _, id := range e.Identities {
				id.SelfCertifications = other.Identities["Alice <alice@example.com>"].SelfCertifications
			}
		}), true, ""},
		{"not for signing", modify(func(e *openpgp.Entity) { certifyOnly(t, e) }), true, "may sign"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			key, err := ParsePublicKey(tt.text)
			if err == nil && !tt.parses {
				t.Fatal("ParsePublicKey accepted it")
			}
			if err == nil {
				if err := key.Verify(data, encodeBase64(signDetached(t, good, packet.Config{}, false)), window, now); !errors.Is(err, ErrBadSignature) {
					t.Errorf("Verify = %v", err)
				}
				err = key.Usable(now)
			}
			refused, ok := errors.AsType[*KeyError](err)
			if !ok || !strings.Contains(refused.Reason, tt.reason) {
				t.Errorf("refused with %v, want %q", err, tt.reason)
			}
		})
	}
}

func privateBytes(t testing.TB, e *openpgp.Entity) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := e.SerializePrivateWithoutSigning(&out, nil); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// withJunk returns data with a first packet that is one byte longer.
func withJunk(t testing.TB, data []byte) []byte {
	t.Helper()
	r := bytes.NewReader(data)
	first, err := packet.NewOpaqueReader(r).Next()
	if err != nil {
		t.Fatal(err)
	}
	first.Contents = append(first.Contents, 0)
	var out bytes.Buffer
	if err := first.Serialize(&out); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return append(out.Bytes(), rest...)
}

// rsaOfSize returns a key with a modulus of this size. The modulus need not be a product of primes, because the size is
// checked first.
func rsaOfSize(t testing.TB, config *packet.Config, bits int) *openpgp.Entity {
	t.Helper()
	e := newEntity(t, config)
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	e.PrimaryKey = packet.NewRSAPublicKey(born, &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537})
	return e
}

// resign replaces the self-signatures by self-signatures with this hash.
func resign(t testing.TB, e *openpgp.Entity, hash crypto.Hash) {
	t.Helper()
	for _, id := range e.Identities {
		for _, cert := range id.SelfCertifications {
			cert.Packet.Hash = hash
			if err := cert.Packet.SignUserId(id.Name, e.PrimaryKey, e.PrivateKey, unsalted); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// certifyOnly takes away the right to sign from the primary key. No subkey has it.
func certifyOnly(t testing.TB, e *openpgp.Entity) {
	t.Helper()
	for _, id := range e.Identities {
		for _, cert := range id.SelfCertifications {
			cert.Packet.FlagSign = false
			if err := cert.Packet.SignUserId(id.Name, e.PrimaryKey, e.PrivateKey, unsalted); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func revokeUserID(t testing.TB, e *openpgp.Entity, when time.Time) {
	t.Helper()
	lifetime := uint32(0)
	for _, id := range e.Identities {
		sig := &packet.Signature{Version: 4, SigType: packet.SigTypeCertificationRevocation, PubKeyAlgo: e.PrimaryKey.PubKeyAlgo, Hash: crypto.SHA256,
			CreationTime: when, IssuerKeyId: &e.PrimaryKey.KeyId, IssuerFingerprint: e.PrimaryKey.Fingerprint, SigLifetimeSecs: &lifetime}
		if err := sig.SignUserId(id.Name, e.PrimaryKey, e.PrivateKey, nil); err != nil {
			t.Fatal(err)
		}
		id.Revocations = append(id.Revocations, packet.NewVerifiableSig(sig))
	}
}

// TestOpenPGPStates checks the states of a key with signatures that the key itself made, verified at now. All of them
// would verify if only the time of signing counted.
func TestOpenPGPStates(t *testing.T) {
	day := uint32(24 * 3600)
	tests := []struct {
		name   string
		config packet.Config
		change func(e *openpgp.Entity) error
		ok     bool
	}{
		{"good", packet.Config{Time: at(born)}, nil, true},
		{"expires later", packet.Config{Time: at(made.Add(-time.Hour)), KeyLifetimeSecs: day}, nil, true},
		{"expired since", packet.Config{Time: at(made.Add(-23*time.Hour - 59*time.Minute)), KeyLifetimeSecs: day}, nil, false},
		{"revoked since, retired", packet.Config{Time: at(born)}, func(e *openpgp.Entity) error {
			return e.Revoke(packet.KeyRetired, "", &packet.Config{Time: at(made.Add(time.Minute))})
		}, false},
		{"revoked since, compromised", packet.Config{Time: at(born)}, func(e *openpgp.Entity) error {
			return e.Revoke(packet.KeyCompromised, "", &packet.Config{Time: at(made.Add(time.Minute))})
		}, false},
		{"user id revoked since", packet.Config{Time: at(born)}, func(e *openpgp.Entity) error {
			revokeUserID(t, e, made.Add(time.Minute))
			return nil
		}, false},
		{"signing subkey", packet.Config{Time: at(born)}, func(e *openpgp.Entity) error {
			return e.AddSigningSubkey(&packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoEdDSA})
		}, true},
		{"signing subkey expired since", packet.Config{Time: at(born)}, func(e *openpgp.Entity) error {
			return e.AddSigningSubkey(&packet.Config{Time: at(made.Add(-23*time.Hour - 59*time.Minute)), Algorithm: packet.PubKeyAlgoEdDSA, KeyLifetimeSecs: day})
		}, false},
		{"signing subkey revoked since", packet.Config{Time: at(born)}, func(e *openpgp.Entity) error {
			if err := e.AddSigningSubkey(&packet.Config{Time: at(born), Algorithm: packet.PubKeyAlgoEdDSA}); err != nil {
				return err
			}
			return e.Subkeys[len(e.Subkeys)-1].Revoke(packet.KeyRetired, "", &packet.Config{Time: at(made.Add(time.Minute))})
		}, false},
	}
	for _, v6 := range []bool{false, true} {
		for _, tt := range tests {
			name := tt.name
			config := tt.config
			config.Algorithm = packet.PubKeyAlgoEdDSA
			if v6 {
				name += ", v6"
				config.V6Keys, config.Algorithm = true, packet.PubKeyAlgoEd25519
			}
			if v6 && (strings.Contains(name, "subkey") || strings.Contains(name, "user id")) {
				continue // the changes above make v4 packets, and a v6 key does not depend on a user id
			}
			t.Run(name, func(t *testing.T) {
				e := newEntity(t, &config)
				unrevoked := *e
				if tt.change != nil {
					if err := tt.change(e); err != nil {
						t.Fatal(err)
					}
					unrevoked = *e
					unrevoked.Revocations = nil
					unrevoked.Subkeys = slices.Clone(e.Subkeys)
					for i := range unrevoked.Subkeys {
						unrevoked.Subkeys[i].Revocations = nil
					}
				}
				sig := encodeBase64(signDetached(t, &unrevoked, packet.Config{}, false))
				key := mustKey(t, publicArmor(t, e))
				// Verify twice, first at the time of signing: the library must not reuse that verdict for now.
				for _, when := range []time.Time{made, now, now} {
					err := key.Verify(data, sig, window, when)
					if when.Equal(now) && (err == nil) != tt.ok {
						t.Errorf("Verify = %v, want ok %v", err, tt.ok)
					}
				}
			})
		}
	}
}
