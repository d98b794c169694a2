package message

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

var base64url = base64.RawURLEncoding.Strict()

// SignCard signs a card with the key, replacing other signatures, as a JWS over the canonical form of the card
// (A2A-14). jku is the URL of the key set. Only Ed25519 keys make such signatures; for another key the card is
// returned as it is.
func SignCard(card wire.Value, key *signing.PrivateKey, jku string) (wire.Value, error) {
	public := key.Public()
	if public.Kind() != signing.KindEd25519 {
		return card, nil
	}
	header := []wire.Member{
		wire.TextField("alg", "EdDSA"), wire.TextField("kid", public.Fingerprint()), wire.TextField("typ", "JOSE"), wire.TextField("jku", jku),
	}
	protected := base64url.EncodeToString(wire.Obj(header...).JSON())
	text, err := key.Sign(signedBytes(protected, card.Without("signatures")))
	if err != nil {
		return card, err
	}
	sig, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return card, err
	}
	return card.With("signatures", wire.Arr(wire.Obj(
		wire.TextField("protected", protected), wire.TextField("signature", base64url.EncodeToString(sig)),
	))), nil
}

func signedBytes(protected string, card wire.Value) []byte {
	return []byte(protected + "." + base64url.EncodeToString(signing.Canonical(card, signing.JCS)))
}

// KeySet returns the JSON web key set of the key, which is empty for a key other than Ed25519.
func KeySet(key *signing.PublicKey) wire.Value {
	keys := wire.Arr()
	if key.Kind() == signing.KindEd25519 {
		keys = wire.Arr(wire.Obj(
			wire.TextField("kty", "OKP"), wire.TextField("crv", "Ed25519"), wire.TextField("alg", "EdDSA"), wire.TextField("use", "sig"),
			wire.TextField("kid", key.Fingerprint()), wire.TextField("x", base64url.EncodeToString(key.Canonical())),
		))
	}
	return wire.Obj(wire.Field("keys", keys))
}

// Signature is a signature on the card of another agent.
type Signature struct {
	Alg, KeyID, KeySet string // KeySet is the URL of the keys, which the signer chose

	protected string
	value     []byte
}

// SignaturesOf returns the signatures of a card that we can check, at most four.
func SignaturesOf(card wire.Value) []Signature {
	list, _ := card.Get("signatures")
	var out []Signature
	for v := range list.Elems() {
		s := Signature{protected: v.GetStr("protected")}
		header, err := base64url.DecodeString(s.protected)
		if err != nil {
			continue
		}
		tree, err := wire.ParseObject(header)
		if err != nil {
			continue
		}
		s.Alg, s.KeyID, s.KeySet = tree.GetStr("alg"), tree.GetStr("kid"), tree.GetStr("jku")
		_, hasCritical := tree.Get("crit")
		if s.value, err = base64url.DecodeString(v.GetStr("signature")); err != nil || hasCritical || s.KeyID == "" {
			continue
		}
		if (s.Alg == "EdDSA" || s.Alg == "ES256") && len(out) < 4 {
			out = append(out, s)
		}
	}
	return out
}

// Verify checks the signature with the key that it names in a key set. It returns the key's thumbprint (RFC 7638).
func (s Signature) Verify(card, keys wire.Value) (thumbprint string, err error) {
	if _, err := wire.ParseLimits(card.JSON(), maxDepth, maxValues); err != nil { // two numbers would have one signature
		return "", fmt.Errorf("the signature of the card covers no exact value: %w", err)
	}
	list, _ := keys.Get("keys")
	for jwk := range list.Elems() {
		if jwk.GetStr("kid") != s.KeyID {
			continue
		}
		check, members, err := s.checker(jwk)
		if err != nil {
			return "", err
		}
		card := card.Without("signatures")
		// signers sign the card as it is, or without defaults, either as the specification or as some SDKs define them
		for _, form := range []wire.Value{card, signedForm(card, false), signedForm(card, true)} {
			if check(signedBytes(s.protected, form)) {
				sum := sha256.Sum256(signing.Canonical(members, signing.JCS))
				return base64url.EncodeToString(sum[:]), nil
			}
		}
		return "", errors.New("the signature of the card does not verify")
	}
	return "", fmt.Errorf("the key set has no key %q", wire.OneLine(s.KeyID, 80))
}

// checker returns the function that verifies with a key, and the members of the key that its thumbprint covers.
func (s Signature) checker(jwk wire.Value) (check func(data []byte) bool, members wire.Value, err error) {
	pick := func(names ...string) wire.Value {
		var list []wire.Member
		for _, name := range names {
			list = append(list, wire.TextField(name, jwk.GetStr(name)))
		}
		return wire.Obj(list...)
	}
	x, errX := base64url.DecodeString(jwk.GetStr("x"))
	switch kind := jwk.GetStr("kty") + " " + jwk.GetStr("crv"); {
	case s.Alg == "EdDSA" && kind == "OKP Ed25519" && errX == nil:
		key, err := signing.ParsePublicKey("ed25519:" + base64.StdEncoding.EncodeToString(x))
		if err != nil {
			return nil, wire.Value{}, err
		}
		text := base64.StdEncoding.EncodeToString(s.value)
		return func(data []byte) bool { return key.Verify(data, text, signing.AnyTime(), time.Now()) == nil }, pick("crv", "kty", "x"), nil
	case s.Alg == "ES256" && kind == "EC P-256" && errX == nil:
		y, err := base64url.DecodeString(jwk.GetStr("y"))
		if err != nil || len(x) != 32 || len(y) != 32 || len(s.value) != 64 {
			return nil, wire.Value{}, errors.New("the signing key of the card, or the signature, is malformed")
		}
		key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
		if err != nil {
			return nil, wire.Value{}, err
		}
		sigR, sigS := new(big.Int).SetBytes(s.value[:32]), new(big.Int).SetBytes(s.value[32:])
		return func(data []byte) bool {
			h := crypto.SHA256.New()
			h.Write(data)
			return ecdsa.Verify(key, h.Sum(nil), sigR, sigS)
		}, pick("crv", "kty", "x", "y"), nil
	}
	return nil, wire.Value{}, errors.New("the signing key of the card does not fit the algorithm of the signature")
}

// The members of a card that stay in the signed form even with a default value (A2A-14): the REQUIRED fields, and the
// optional ones with explicit presence in Protocol Buffers.
var (
	required = []string{
		"name", "description", "supportedInterfaces", "version", "capabilities", "defaultInputModes", "defaultOutputModes", "skills",
		"url", "protocolBinding", "protocolVersion", "id", "tags", "organization", "scheme",
	}
	optional = []string{"documentationUrl", "iconUrl", "streaming", "pushNotifications", "extendedAgentCard"}
)

// signedForm returns a card without the members whose values are the defaults of ProtoJSON. If bare is false, it keeps
// required and optional members and empty objects, as the specification demands, and leaves the members params and
// header as they are, because they may contain anything. If bare is true, it removes everything that is empty, like the
// SDKs for Python and JavaScript.
func signedForm(v wire.Value, bare bool) wire.Value {
	switch v.Kind() {
	case wire.Array:
		out := make([]wire.Value, 0, v.Len())
		for e := range v.Elems() {
			if e = signedForm(e, bare); !bare || !isEmpty(e) {
				out = append(out, e)
			}
		}
		return wire.Arr(out...)
	case wire.Object:
		var out []wire.Member
		for _, m := range v.Members() {
			value, isOpaque := m.Value, m.Key == "params" || m.Key == "header"
			if bare || !isOpaque {
				value = signedForm(value, bare)
			}
			yes, isBool := value.Boolean()
			keep := slices.Contains(optional, m.Key) || slices.Contains(required, m.Key)
			empty := isEmpty(value) && (bare || value.Kind() != wire.Object && !keep)
			if !empty && (!isBool || yes || keep) {
				out = append(out, wire.Field(m.Key, value))
			}
		}
		return wire.Obj(out...)
	}
	return v
}

func isEmpty(v wire.Value) bool {
	text, isText := v.Str()
	return v.IsNull() || isText && text == "" || (v.Kind() == wire.Array || v.Kind() == wire.Object) && v.Len() == 0
}

// Digest returns the SHA-256 of the canonical form of a card without its signatures.
func Digest(card wire.Value) [32]byte { return signing.Digest(card.Without("signatures")) }
