package signing

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgped25519 "github.com/ProtonMail/go-crypto/openpgp/ed25519"
	pgped448 "github.com/ProtonMail/go-crypto/openpgp/ed448"
	"github.com/ProtonMail/go-crypto/openpgp/eddsa"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
)

const (
	armorBegin    = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	armorPublic   = "PGP PUBLIC KEY BLOCK"
	armorPrivate  = "PGP PRIVATE KEY BLOCK"
	armorSigBegin = "-----BEGIN PGP SIGNATURE-----"
	armorSig      = "PGP SIGNATURE"

	// maxPGPSignature bounds the text of a signature. RSA-4096 needs less than 1 KiB.
	maxPGPSignature = 8 << 10
	// maxPGPSelfSigs bounds the signatures in a key, because each may cost a verification.
	maxPGPSelfSigs = 100
	minRSABits     = 2048
	maxRSABits     = 4096
)

// The packet tags of RFC 9580 §5 that a key may contain.
const (
	tagSignature     = 2
	tagPrivateKey    = 5
	tagPublicKey     = 6
	tagPrivateSubkey = 7
	tagMarker        = 10
	tagTrust         = 12
	tagUserID        = 13
	tagPublicSubkey  = 14
	tagUserAttribute = 17
	tagPadding       = 21
)

// openpgpScheme verifies signatures with one entity. Hold mu while using the entity, because it caches which
// self-signatures it has checked.
type openpgpScheme struct {
	mu     sync.Mutex
	entity *openpgp.Entity
}

// parseOpenPGP reads one armored public key under the rules of AM-8. usable makes the checks that depend on the time.
func parseOpenPGP(text string) (*PublicKey, error) {
	data, ok := dearmor(text, armorPublic)
	if !ok {
		return nil, refuse("the OpenPGP armor is damaged or holds more than one block")
	}
	body, err := checkPackets(data)
	if err != nil {
		return nil, err
	}
	entity, err := openpgp.ReadEntity(packet.NewReader(bytes.NewReader(data)))
	if err != nil {
		return nil, &KeyError{Reason: "the OpenPGP key is damaged or has no valid self-signature", cause: err}
	}
	// Drop the subkeys whose algorithm is not accepted, so that their signatures cost no time.
	entity.Subkeys = slices.DeleteFunc(entity.Subkeys, func(sub openpgp.Subkey) bool {
		accepted, err := checkMaterial(sub.PublicKey)
		return err != nil || !accepted
	})
	return &PublicKey{kind: KindOpenPGP, canonical: body, scheme: &openpgpScheme{entity: entity}}, nil
}

// dearmor returns the bytes of exactly one armor block of this type, and refuses text around it. The library alone
// would skip leading garbage and stop after the first block.
func dearmor(text, blockType string) ([]byte, bool) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "-----BEGIN "+blockType+"-----") || !strings.HasSuffix(text, "-----END "+blockType+"-----") ||
		strings.Count(text, "-----BEGIN ") != 1 || strings.Count(text, "-----END ") != 1 {
		return nil, false
	}
	block, err := armor.Decode(strings.NewReader(text))
	if err != nil || block.Type != blockType {
		return nil, false
	}
	data, err := io.ReadAll(block.Body)
	return data, err == nil && len(data) > 0
}

// checkPackets checks the header and the key material of each packet of a key, before any self-signature costs a
// verification. It accepts exactly one entity, with at most maxPGPSelfSigs signatures and without private or compressed
// packets. It returns the body of the primary key.
func checkPackets(data []byte) (primary []byte, err error) {
	r := packet.NewOpaqueReader(bytes.NewReader(data))
	signatures := 0
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) && primary != nil {
			return primary, nil
		}
		if err != nil {
			return nil, &KeyError{Reason: "the OpenPGP key is damaged", cause: err}
		}
		switch {
		case p.Tag == tagPrivateKey || p.Tag == tagPrivateSubkey:
			return nil, refuse("this is a private key")
		case primary == nil && p.Tag != tagPublicKey:
			return nil, refuse("the OpenPGP key does not begin with a public key")
		case primary != nil && p.Tag == tagPublicKey:
			return nil, refuse("there is more than one key")
		}
		switch p.Tag {
		case tagPublicKey:
			primary = p.Contents
			err = checkPrimary(p)
		case tagPublicSubkey:
			err = checkSubkey(p)
		case tagSignature:
			if signatures++; signatures > maxPGPSelfSigs {
				err = refuse("the OpenPGP key holds too many signatures")
			}
		case tagMarker, tagTrust, tagUserID, tagUserAttribute, tagPadding:
		default:
			err = refuse("the OpenPGP key contains a packet that does not belong in a key")
		}
		if err != nil {
			return nil, err
		}
	}
}

func checkPrimary(p *packet.OpaquePacket) error {
	parsed, err := p.Parse()
	key, ok := parsed.(*packet.PublicKey)
	switch {
	case err != nil || !ok:
		return &KeyError{Reason: "the OpenPGP key is damaged or of an unknown kind", cause: err}
	case key.Version != 4 && key.Version != 6:
		return refuse("an OpenPGP key must be of version 4 or 6")
	case !bytes.Equal(keyBody(key), p.Contents):
		return refuse("the OpenPGP key is not encoded canonically")
	}
	accepted, err := checkMaterial(key)
	if err == nil && !accepted {
		err = refuse("the OpenPGP key uses an algorithm that is not accepted")
	}
	return err
}

// checkSubkey returns an error if AM-8 refuses the whole key because of this subkey. It accepts a subkey that the
// library cannot read, because the library drops it.
func checkSubkey(p *packet.OpaquePacket) error {
	parsed, err := p.Parse()
	key, ok := parsed.(*packet.PublicKey)
	if err != nil || !ok {
		return nil
	}
	_, err = checkMaterial(key)
	return err
}

// keyBody returns the body of a public-key packet: the bytes hashed for a fingerprint, without the prefix.
func keyBody(key *packet.PublicKey) []byte {
	var prefix, all bytes.Buffer
	if key.SerializeSignaturePrefix(&prefix) != nil || key.SerializeForHash(&all) != nil {
		return nil
	}
	return all.Bytes()[prefix.Len():]
}

// checkMaterial checks one public key of an entity. It returns an error if AM-8 refuses the whole entity because of
// this key. accepted reports whether we accept signatures of this key. The list of algorithms is closed; the others are
// deprecated, experimental, or so slow that a stranger could use up our time.
func checkMaterial(key *packet.PublicKey) (accepted bool, err error) {
	switch k := key.PublicKey.(type) {
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSABits || n > maxRSABits {
			return false, refuse("an RSA key must have 2048 to 4096 bits")
		}
		return true, nil
	case *pgped25519.PublicKey:
		return true, checkEdwards(k.Point)
	case *pgped448.PublicKey:
		return true, checkEdwards(k.Point)
	case *eddsa.PublicKey:
		return true, checkEdwards(k.X)
	}
	if key.PubKeyAlgo == packet.PubKeyAlgoECDSA {
		curve, err := key.Curve()
		nist := curve == packet.CurveNistP256 || curve == packet.CurveNistP384 || curve == packet.CurveNistP521
		return err == nil && nist, nil
	}
	return false, nil
}

// checkEdwards refuses points with which one signature verifies for every message.
func checkEdwards(point []byte) error {
	const ed25519Size, ed448Size = 32, 57
	switch len(point) {
	case ed25519Size:
		if reason := pointFault(point); reason != "" {
			return refuse(reason)
		}
		return nil
	case ed448Size:
		if isWeak448(point) {
			return refuse("the point has low order or is not encoded canonically")
		}
		return nil
	}
	return refuse("the OpenPGP key is damaged")
}

// isWeak448 reports whether point is one of the four points of Ed448 with order 1, 2 or 4 (their y is 1, −1 or 0), or
// has a bit that no encoding sets. The library checks that y is below p.
func isWeak448(point []byte) bool {
	y, sign := point[:56], point[56]
	one, minusOne := make([]byte, 56), bytes.Repeat([]byte{0xff}, 56) // p−1 = 2^448 − 2^224 − 2
	one[0], minusOne[0], minusOne[28] = 1, 0xfe, 0xfe
	return sign&0x7f != 0 || bytes.Equal(y, minusOne) || bytes.Equal(y, one) || bytes.Equal(y, make([]byte, 56))
}

// pgpConfig returns the settings that evaluate keys at now and refuse hashes below SHA-256 (AM-8, AM-9).
func pgpConfig(now time.Time) *packet.Config {
	weak := map[crypto.Hash]bool{crypto.MD5: true, crypto.RIPEMD160: true, crypto.SHA1: true, crypto.SHA224: true}
	return &packet.Config{
		Time:                        func() time.Time { return now },
		RejectHashAlgorithms:        weak,
		RejectMessageHashAlgorithms: weak,
	}
}

// usable implements [scheme].
func (s *openpgpScheme) usable(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.entity.Identities {
		for _, revocation := range id.Revocations {
			revocation.Valid = nil // the library has cached a result that depended on the time
		}
	}
	config := pgpConfig(now)
	if _, err := s.entity.VerifyPrimaryKey(now, config); err != nil {
		return &KeyError{Reason: pgpReason(err), cause: err}
	}
	if _, ok := s.entity.SigningKey(now, config); !ok {
		return refuse("the OpenPGP key has no part that may sign now")
	}
	return nil
}

func pgpReason(err error) string {
	switch {
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return "the OpenPGP key is revoked"
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return "the OpenPGP key is expired or not yet valid"
	}
	return "the OpenPGP key has no valid self-signature"
}

// prepare implements [scheme].
func (s *openpgpScheme) prepare(signature string, w Window, now time.Time) (func([]byte) error, error) {
	raw, err := decodePGPSignature(signature)
	if err != nil {
		return nil, err
	}
	sig, err := parsePGPSignature(raw)
	if err != nil {
		return nil, err
	}
	if sig.Version != s.entity.PrimaryKey.Version {
		return nil, badSignature("key and signature are of different versions")
	}
	createdAt := sig.CreationTime
	if createdAt.Before(w.From.Truncate(time.Second)) || createdAt.After(w.To) {
		return nil, badSignature("made outside the accepted window")
	}
	if createdAt.After(now) {
		now = createdAt // the signer's clock is ahead, but within the window; the library calls such a signature expired
	}
	if err := s.usable(now); err != nil {
		return nil, badSignatureBecause("the key cannot be used", err)
	}
	return func(data []byte) error { return s.check(data, raw, sig, now) }, nil
}

// decodePGPSignature decodes a signature packet in base64 or armor (AM-17).
func decodePGPSignature(text string) ([]byte, error) {
	if len(text) > maxPGPSignature {
		return nil, badSignature("too long")
	}
	if strings.HasPrefix(text, armorSigBegin) {
		if raw, ok := dearmor(text, armorSig); ok {
			return raw, nil
		}
		return nil, badSignature("damaged armor")
	}
	raw, ok := decodeBase64(text)
	if !ok {
		return nil, badSignature("not base64")
	}
	return raw, nil
}

// parsePGPSignature accepts exactly one binary signature packet with a hash of AM-9.
func parsePGPSignature(raw []byte) (*packet.Signature, error) {
	r := packet.NewOpaqueReader(bytes.NewReader(raw))
	p, err := r.Next()
	if err != nil || p.Tag != tagSignature {
		return nil, badSignature("not an OpenPGP signature packet")
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		return nil, badSignature("more than one packet")
	}
	parsed, err := packet.Read(bytes.NewReader(raw))
	if err != nil {
		return nil, badSignatureBecause("damaged OpenPGP packet", err)
	}
	sig, ok := parsed.(*packet.Signature)
	if !ok || sig.IssuerKeyId == nil {
		return nil, badSignature("no issuer")
	}
	if sig.SigType != packet.SigTypeBinary {
		return nil, badSignature("not a binary signature")
	}
	switch sig.Hash {
	case crypto.SHA256, crypto.SHA384, crypto.SHA512, crypto.SHA3_256, crypto.SHA3_512:
		return sig, nil
	}
	return nil, badSignature("weak hash")
}

// check verifies the signature with the key as it is now, and as it was when the signature was made. The library caches
// its first evaluation of a revocation. So prepare has evaluated the key as it is now first: a revocation made since the
// signature would otherwise be cached as not yet in effect.
func (s *openpgpScheme) check(data, raw []byte, sig *packet.Signature, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	config := pgpConfig(now)
	if _, ok := s.entity.SigningKeyById(now, *sig.IssuerKeyId, config); !ok {
		return badSignature("the signing key cannot be used now")
	}
	keyring := openpgp.EntityList{s.entity}
	if _, _, err := openpgp.VerifyDetachedSignature(keyring, bytes.NewReader(data), bytes.NewReader(raw), config); err != nil {
		return badSignatureBecause("it does not verify", err)
	}
	return nil
}
