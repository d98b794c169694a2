package message

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	boxAlgorithm   = "x25519-xsalsa20-poly1305"
	MaxValues      = 100_000 // in one message; our limit, so that a megabyte of brackets stays cheap
	maxBatchValues = 400_000 // in a batch
)

// Packet is a message with the form in which it was sent.
type Packet struct {
	Tree      wire.Value // of the message, decrypted
	Enveloped bool
	Boxed     bool
	SenderKey signing.BoxPublic // the sender's key for the box, if Boxed; unproven until the inner signature verifies (MS-20)
}

// ReadPacket reads a bare message, an envelope, or a box that key opens (MS-10, MS-17 to MS-19).
func ReadPacket(data []byte, key *signing.BoxKey) (Packet, *Error) {
	if len(data) > MaxMessage+MaxWrapping {
		return Packet{}, newTooLargeError()
	}
	tree, err := parseTree(data, MaxNesting+2, MaxValues) // checkBounds bounds the message itself
	if err != nil {
		return Packet{}, err
	}
	return OpenPacket(tree, len(data), key)
}

// MaxWrapping is a generous bound on what base64 and an envelope add to the largest message.
const MaxWrapping = MaxMessage/2 + 1024

func newTooLargeError() *Error {
	e := FailAt(CodeSchema, "", "a message has at most 1048576 bytes")
	e.Status = 413
	return e
}

func parseTree(data []byte, depth, values int) (wire.Value, *Error) {
	tree, err := wire.ParseForeign(data, depth, values)
	if err != nil {
		return tree, Fail(CodeParse).Because(err)
	}
	if !hasExactNumbers(tree) {
		return tree, FailAt(CodeParse, "", "a number overflows, or is not the one that its signature covers")
	}
	return tree, nil
}

// hasExactNumbers reports whether the canonical text (MS-13) of every number in v stands for one amount. Python writes
// an integer with all digits, and refuses very long ones. Anything else becomes a double, which must not overflow; beyond
// 2^53 it must have the digits that Python writes for it: 9007199254740993.0 would get the signature of …992.0.
func hasExactNumbers(v wire.Value) bool {
	if token, ok := v.Num(); ok {
		if !strings.ContainsAny(token, ".eE") {
			return len(token) <= 4300 // Python's limit for integers
		}
		f, err := strconv.ParseFloat(token, 64)
		return wire.IsSafeNumber(token) || err == nil && digitsOf(token) == digitsOf(strconv.FormatFloat(f, 'e', -1, 64))
	}
	for i := range v.Len() {
		if !hasExactNumbers(v.At(i)) {
			return false
		}
	}
	return true
}

// digitsOf returns the digits of a number between its first and its last that is not zero.
func digitsOf(token string) string {
	mantissa, _, _ := strings.Cut(strings.ToLower(token), "e")
	return strings.Trim(strings.ReplaceAll(mantissa, ".", ""), "-0")
}

func depth(v wire.Value) int {
	if v.Kind() != wire.Array && v.Kind() != wire.Object {
		return 0
	}
	deepest := 0
	for i := range v.Len() {
		deepest = max(deepest, depth(v.At(i)))
	}
	return deepest + 1
}

// OpenPacket reads a packet from a parsed tree, whose JSON has size bytes. A nil key opens no box.
func OpenPacket(tree wire.Value, size int, key *signing.BoxKey) (Packet, *Error) {
	if tree.Kind() != wire.Object {
		return Packet{}, Fail(CodeParse)
	}
	version, enveloped := tree.Get("moltspeak")
	if !enveloped {
		return checkBounds(Packet{Tree: tree}, size)
	}
	if s, _ := version.Str(); s != Version {
		return Packet{Enveloped: true}, FailAt(CodeVersion, "moltspeak", `must be the text "0.1"`)
	}
	r := &reader{v: tree, bad: CodeSchema}
	p := Packet{Enveloped: true}
	env := r.at("envelope", r.need("envelope", wire.Object))
	p.Boxed = env.optFlag("encrypted")
	env.check(!env.optFlag("compressed"), "compressed", "compression is not offered")
	env.optOneOf("encoding", "utf-8")
	if p.Boxed {
		return p.open(r, env, key)
	}
	if p.Tree = r.need("message", wire.Object); r.err != nil {
		return p, r.err
	}
	return checkBounds(p, len(p.Tree.JSON()))
}

func (p Packet) open(r, env *reader, key *signing.BoxKey) (Packet, *Error) {
	env.oneOf("algorithm", boxAlgorithm)
	sender, nonce, sealed := env.text("sender_public"), env.text("nonce"), r.text("ciphertext")
	if r.err != nil {
		return p, r.err
	}
	from, err := signing.ParseBoxPublic(strings.TrimPrefix(sender, "x25519:"))
	n, nonceOK := unbase64(nonce)
	c, sealedOK := unbase64(sealed)
	if err != nil || !nonceOK || !sealedOK || len(n) != signing.NonceSize || !strings.HasPrefix(sender, "x25519:") {
		return p, FailAt(CodeSchema, "envelope", "the box is not of the protocol's form")
	}
	if key == nil {
		return p, Fail(CodeAuthFailed)
	}
	plain, err := key.Open(c, [signing.NonceSize]byte(n), from)
	if err != nil {
		return p, Fail(CodeAuthFailed).Because(err)
	}
	if len(plain) > MaxMessage {
		return p, newTooLargeError()
	}
	tree, e := parseTree(plain, MaxNesting, MaxValues)
	if e != nil {
		return p, e
	}
	if tree.Kind() != wire.Object {
		return p, Fail(CodeParse)
	}
	p.Tree, p.SenderKey = tree, from
	return p, nil
}

func checkBounds(p Packet, size int) (Packet, *Error) {
	if size > MaxMessage {
		return p, newTooLargeError()
	}
	if depth(p.Tree) > MaxNesting {
		return p, FailAt(CodeParse, "", "is nested too deep")
	}
	return p, nil
}

// unbase64 decodes padded standard base64, with or without its prefix (MS-19).
func unbase64(s string) ([]byte, bool) {
	s = strings.TrimPrefix(s, "base64:")
	raw, err := base64.StdEncoding.Strict().DecodeString(s)
	return raw, err == nil && base64.StdEncoding.EncodeToString(raw) == s
}

// Wrap returns a signed message as bare JSON or in an envelope.
func Wrap(tree wire.Value, enveloped bool) []byte {
	if !enveloped {
		return tree.JSON()
	}
	return wire.Obj(wire.TextField("moltspeak", Version), wire.Field("envelope", wire.Obj(
		wire.Field("encrypted", wire.Bool(false)), wire.Field("compressed", wire.Bool(false)), wire.TextField("encoding", "utf-8"),
	)), wire.Field("message", tree)).JSON()
}

// Seal returns a signed message in a box that only the holder of the recipient's key can open (MS-18).
func Seal(tree wire.Value, key *signing.BoxKey, recipient signing.BoxPublic) []byte {
	sealed, nonce := key.Seal(tree.JSON(), recipient)
	return wire.Obj(wire.TextField("moltspeak", Version), wire.Field("envelope", wire.Obj(
		wire.Field("encrypted", wire.Bool(true)), wire.TextField("algorithm", boxAlgorithm),
		wire.Field("sender_public", wire.Text("x25519:"+key.Public().String())),
		wire.TextField("nonce", "base64:"+base64.StdEncoding.EncodeToString(nonce[:])),
	)), wire.TextField("ciphertext", "base64:"+base64.StdEncoding.EncodeToString(sealed))).JSON()
}

// Ed25519Prefix is the prefix of signing keys and signatures.
const Ed25519Prefix = "ed25519:"

// Sign returns the message with its signature as the last member (MS-11). key is an Ed25519 key.
func Sign(tree wire.Value, key *signing.PrivateKey) wire.Value {
	tree = tree.Without("sig")
	text, err := key.Sign(signing.Canonical(tree, signing.Python))
	if err != nil {
		panic(err) // an Ed25519 key always signs
	}
	return tree.With("sig", wire.Text(Ed25519Prefix+text))
}

// Verify checks the signature over the tree as received, strictly and over no other form (MS-15).
func (m Message) Verify(key *signing.PublicKey) *Error {
	sig, ok := strings.CutPrefix(m.Sig, Ed25519Prefix)
	if !ok {
		return Fail(CodeSignature)
	}
	if err := key.VerifyStrict(signing.Canonical(m.Tree.Without("sig"), signing.Python), sig); err != nil {
		return Fail(CodeSignature).Because(err)
	}
	return nil
}

// ReadBatch reads {moltspeak, batch} or a bare array of at most 100 entries.
func ReadBatch(raw []byte) ([]wire.Value, *Error) {
	tree, e := parseTree(raw, MaxNesting+4, maxBatchValues) // a batch adds two levels to those of a packet
	if e != nil {
		return nil, e
	}
	if tree.Kind() == wire.Object {
		if tree.GetStr("moltspeak") != Version {
			return nil, FailAt(CodeVersion, "moltspeak", `must be the text "0.1"`)
		}
		r := &reader{v: tree, bad: CodeSchema}
		if tree = r.need("batch", wire.Array); r.err != nil {
			return nil, r.err
		}
	}
	if tree.Kind() != wire.Array || tree.Len() > MaxEntries {
		return nil, FailAt(CodeSchema, "batch", "must be an array of at most 100 messages")
	}
	return slices.Collect(tree.Elems()), nil
}

// ParseKey parses a signing key in the form of messages (MS-12).
func ParseKey(text string) (*signing.PublicKey, bool) {
	raw, ok := strings.CutPrefix(text, Ed25519Prefix)
	if !ok {
		return nil, false
	}
	key, err := signing.ParseEd25519(raw)
	return key, err == nil
}

// ParsePoint parses an encryption key in the form of messages (MS-12).
func ParsePoint(text string) (signing.BoxPublic, bool) {
	raw, ok := strings.CutPrefix(text, "x25519:")
	if !ok {
		return signing.BoxPublic{}, false
	}
	point, err := signing.ParseBoxPublic(raw)
	return point, err == nil
}
