package signing

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// explainable is a message with keys out of order, text outside ASCII, a slash, characters that Go escapes, and
// numbers.
const explainable = `{"to":"am_b","from":"am_a","payload":{"who":"Zoë <&>","url":"https://example.org/x","n":1,"f":1.5,"list":[1,{"b":2,"a":[]}],"empty":{}}}`

// enough is a number of tries that reaches every combination.
const enough = 1 << 20

func parseTree(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.ParseObject([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestExplain signs the message with the mistakes of other implementations. The bytes are written out, and do not come
// from the encoder under test.
func TestExplain(t *testing.T) {
	key, other := benchKey(), newAgeKey(t)
	secret := ed25519.NewKeyFromSeed(key.public.testSeed(t))
	raw := func(data string) []byte { return ed25519.Sign(secret, []byte(data)) }
	sign := func(data string) string { return base64.StdEncoding.EncodeToString(raw(data)) }
	const good = `{"from":"am_a","payload":{"empty":{},"f":1.5,"list":[1,{"a":[],"b":2}],"n":1,"url":"https://example.org/x","who":"Zoë <&>"},"to":"am_b"}`
	short, long := sha256.Sum256([]byte(good)), sha512.Sum512([]byte(good))
	prehashed, err := secret.Sign(nil, long[:], &ed25519.Options{Hash: crypto.SHA512})
	if err != nil {
		t.Fatal(err)
	}
	otherSignature, err := other.Sign([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	const (
		unsorted   = "the keys are not sorted"
		spaces     = "there are spaces after commas and colons"
		indented   = "the JSON is indented"
		emptyText  = `the message was signed with "signature":""`
		nullMember = `the message was signed with "signature":null`
		slashes    = "slashes are escaped"
		hexText    = "the signature is written in hex instead of base64"
	)
	for _, tt := range []struct {
		name, signature string
		want            []string
		at              int // of the first difference; -1 for none
	}{
		{"spaces of Python", sign(`{"from": "am_a", "payload": {"empty": {}, "f": 1.5, "list": [1, {"a": [], "b": 2}], "n": 1, "url": "https://example.org/x", "who": "Zo\u00eb <&>"}, "to": "am_b"}`), []string{spaces}, 8},
		{"unsorted", sign(`{"to":"am_b","from":"am_a","payload":{"who":"Zoë <&>","url":"https://example.org/x","n":1,"f":1.5,"list":[1,{"b":2,"a":[]}],"empty":{}}}`), []string{unsorted}, 2},
		{"unsorted, spaces", sign(`{"to": "am_b", "from": "am_a", "payload": {"who": "Zoë <&>", "url": "https://example.org/x", "n": 1, "f": 1.5, "list": [1, {"b": 2, "a": []}], "empty": {}}}`), []string{unsorted, spaces}, 2},
		{"indented", sign("{\n  \"from\": \"am_a\",\n  \"payload\": {\n    \"empty\": {},\n    \"f\": 1.5,\n    \"list\": [\n      1,\n      {\n        \"a\": [],\n        \"b\": 2\n      }\n    ],\n    \"n\": 1,\n    \"url\": \"https://example.org/x\",\n    \"who\": \"Zoë <&>\"\n  },\n  \"to\": \"am_b\"\n}"), []string{indented}, 1},
		{"signature null", sign(strings.Replace(good, `,"to"`, `,"signature":null,"to"`, 1)), []string{nullMember}, 126},
		{"signature empty", sign(strings.Replace(good, `,"to"`, `,"signature":"","to"`, 1)), []string{emptyText}, 126},
		{"unsorted, signature empty", sign(strings.TrimSuffix(explainable, "}") + `,"signature":""}`), []string{unsorted, emptyText}, 2},
		{"slashes of PHP", sign(strings.NewReplacer("/", `\/`, "ë", `\u00eb`).Replace(good)), []string{slashes}, 90},
		{"floats", sign(strings.NewReplacer(":1,", ":1.0,", ":2}", ":2.0}", "[1,", "[1.0,").Replace(good)), []string{"integers are written as floats"}, 54},
		{"only the payload", sign(good[len(`{"from":"am_a","payload":`):strings.Index(good, `,"to"`)]), []string{"only the payload was signed"}, 2},
		{"a line break", sign(good + "\n"), []string{"a line break at the end was signed"}, len(good)},
		{"SHA-256", sign(string(short[:])), []string{"a SHA-256 of the bytes was signed"}, -1},
		{"SHA-256 in hex", sign(hex.EncodeToString(short[:])), []string{"the hex text of a SHA-256 was signed"}, -1},
		{"SHA-512", sign(string(long[:])), []string{"a SHA-512 of the bytes was signed"}, -1},
		{"SHA-512 in hex", sign(hex.EncodeToString(long[:])), []string{"the hex text of a SHA-512 was signed"}, -1},
		{"Ed25519ph", base64.StdEncoding.EncodeToString(prehashed), []string{"the variant Ed25519ph was used"}, -1},
		{"hex", hex.EncodeToString(raw(good)), []string{hexText}, -1},
		{"hex, unsorted", hex.EncodeToString(raw(explainable)), []string{hexText, unsorted}, 2},
		{"base64 of hex", base64.StdEncoding.EncodeToString([]byte(hex.EncodeToString(raw(good)))), []string{hexText}, -1},
		{"line breaks", sign(good)[:64] + "\n" + sign(good)[64:], []string{"the signature contains white space or a prefix"}, -1},
		{"prefix", "ed25519:" + sign(good), []string{"the signature contains white space or a prefix"}, -1},
		{"another key", otherSignature, []string{"the signature was made with another key of the card"}, -1},
		{"too short", "AAAA", []string{"the signature is not 64 bytes in base64"}, -1},
		{"no signature", "", []string{"the signature is not 64 bytes in base64"}, -1},
		{"another message", sign(strings.Replace(good, "am_b", "am_c", 1)), nil, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			message := parseTree(t, explainable).With("signature", wire.Text(tt.signature))
			d := Explain(message, tt.signature, []*PublicKey{key.Public(), other.Public()}, AnyTime(), time.Now(), enough)
			at, differs := d.Difference()
			if !differs {
				at = -1
			}
			if !slices.Equal(d.Mistakes, tt.want) || string(d.Expected) != good || at != tt.at {
				t.Errorf("Explain() = %q, difference at %d of\n%s\n%s\nwant %q at %d", d.Mistakes, at, d.Expected, d.Signed, tt.want, tt.at)
			}
			if text := d.String(); !strings.Contains(text, fmt.Sprintf("sign the %d bytes whose SHA-256 is %x", len(good), short)) || strings.Contains(text, "Zo") || len(text) > 400 {
				t.Errorf("String() = %s", text)
			}
		})
	}
}

// testSeed returns the seed of benchKey.
func (k *PublicKey) testSeed(t *testing.T) []byte {
	t.Helper()
	seed := make([]byte, ed25519.SeedSize)
	if !NewEd25519FromSeed(seed).Public().sameAs(k) {
		t.Fatal("benchKey has another seed")
	}
	return seed
}

// TestExplainKinds checks that the bytes are found for the other kinds of keys too.
func TestExplainKinds(t *testing.T) {
	for _, key := range keyOfEachKind(t) {
		signature, err := key.Sign([]byte(explainable))
		if err != nil {
			t.Fatal(err)
		}
		d := Explain(parseTree(t, explainable), signature, []*PublicKey{key.Public()}, AnyTime(), time.Now(), 64)
		if len(d.Mistakes) != 1 || d.Mistakes[0] != "the keys are not sorted" {
			t.Errorf("%s: Explain() = %q", key.Public().Kind(), d.Mistakes)
		}
	}
}

// countingScheme counts the checks of a key.
type countingScheme struct {
	scheme
	checks *int
}

func (s countingScheme) prepare(signature string, w Window, now time.Time) (func([]byte) error, error) {
	check, err := s.scheme.prepare(signature, w, now)
	return func(data []byte) error { *s.checks++; return check(data) }, err
}

// TestExplainIsBounded checks that a stranger cannot cause more checks than the caller allows, and that no byte string
// is checked twice.
func TestExplainIsBounded(t *testing.T) {
	signature, err := benchKey().Sign([]byte("something else"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{explainable, `{"a":1}`, "{}"} {
		for _, tries := range []int{0, 1, 10, 32} {
			checks := 0
			key := *benchKey().Public()
			key.scheme = countingScheme{key.scheme, &checks}
			d := Explain(parseTree(t, text), signature, []*PublicKey{&key}, AnyTime(), time.Now(), tries)
			if len(d.Mistakes) > 0 || checks > tries {
				t.Errorf("%d checks with %d tries: %q", checks, tries, d.Mistakes)
			}
		}
		redundant, seen := findRedundantVariants(parseTree(t, text)), map[string]bool{}
		for _, h := range habitCombinations() {
			if slices.ContainsFunc(redundant, h.has) || h.weight() > 1 {
				continue
			}
			data := string(h.encode(parseTree(t, text)))
			if seen[data] {
				t.Errorf("%s: tried twice: %s", text, data)
			}
			seen[data] = true
		}
	}
}

func TestOtherKeys(t *testing.T) {
	age := newAgeKey(t)
	keys := make([]*PrivateKey, 5)
	for i := range keys {
		keys[i] = NewEd25519FromSeed(append(make([]byte, 31), byte(i+1)))
	}
	chain := ""
	for i := range keys[1:] {
		var err error
		if chain, err = keys[i].ExtendKeyChain("am_a", chain, keys[i+1], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		meta wire.Value
		n    int
		want []*PrivateKey
	}{
		{"no metadata", wire.Value{}, 3, nil},
		{"damaged", wire.Obj(wire.TextField("age_recipient", "age1x"), wire.TextField(wire.MetaKeyChain, "a b,c")), 3, nil},
		{"both", wire.Obj(wire.TextField("age_recipient", age.PublicText()), wire.TextField(wire.MetaKeyChain, chain)), 3, []*PrivateKey{age, keys[3], keys[2]}},
		{"chain", wire.Obj(wire.TextField(wire.MetaKeyChain, chain)), 9, []*PrivateKey{keys[3], keys[2], keys[1], keys[0]}},
	} {
		got := OtherKeys(wire.Card{Metadata: tt.meta}, tt.n)
		same := func(a *PublicKey, b *PrivateKey) bool { return a.sameAs(b.Public()) }
		if !slices.EqualFunc(got, tt.want, same) {
			t.Errorf("%s: OtherKeys() = %d keys, want %d", tt.name, len(got), len(tt.want))
		}
	}
}

func BenchmarkExplain(b *testing.B) {
	key := benchKey()
	signature, err := key.Sign([]byte("something else"))
	if err != nil {
		b.Fatal(err)
	}
	message := parseTree(b, explainable)
	for b.Loop() {
		Explain(message, signature, []*PublicKey{key.Public()}, AnyTime(), time.Now(), 32)
	}
}
