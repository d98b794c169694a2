package signing

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Diagnosis explains why a signature does not verify.
type Diagnosis struct {
	// Mistakes are fixed texts about what the signer did wrong; empty if no known mistake fits.
	Mistakes []string
	Expected []byte // the bytes that the signature must cover: the JCS form of the message without its signature
	Signed   []byte // the bytes that the signature covers, directly or by a hash; nil if unknown
}

// Explain finds out why signature does not verify for message. message is the object as received, with or without its
// signature; signature may be malformed. keys[0] is the key that must verify the signature; the other keys are those
// that the signer may have used by mistake. With keys[0], Explain checks up to maxTries encodings that faulty
// implementations are known to sign, until the signature verifies. With each of the other keys, it tries the forms of
// AM-14. The caller must refuse the signature even if Explain finds the mistake.
func Explain(message wire.Value, signature string, keys []*PublicKey, w Window, now time.Time, maxTries int) Diagnosis {
	bare := message.Without("signature")
	d := Diagnosis{Expected: Canonical(bare, JCS)}
	for _, other := range keys[1:] {
		if v, err := other.VerifyValue(bare, signature, w, now); err == nil {
			d.Mistakes, d.Signed = []string{"the signature was made with another key of the card"}, v.Canonical
			return d
		}
	}
	key := keys[0]
	check, err := key.scheme.prepare(signature, w, now)
	if err != nil {
		repaired, mistake := repairSignature(signature)
		if check, err = key.scheme.prepare(repaired, w, now); err != nil {
			if key.kind != KindOpenPGP {
				d.Mistakes = []string{"the signature is not 64 bytes in base64"}
			}
			return d
		}
		signature, d.Mistakes = repaired, []string{mistake}
	}
	redundant := findRedundantVariants(message)
	tried := 0
	for _, h := range habitCombinations() {
		if slices.ContainsFunc(redundant, h.has) {
			continue
		}
		if tried++; tried > maxTries {
			break
		}
		data := h.encode(message)
		covered := hashing(h[hashHabit]).apply(data)
		if hashing(h[hashHabit]) == hashEd25519ph {
			err = key.verifyEd25519ph(covered, signature)
		} else {
			err = check(covered)
		}
		if err == nil {
			d.Mistakes, d.Signed = append(d.Mistakes, h.mistakes()...), data
			return d
		}
	}
	return d
}

// OtherKeys returns up to n keys of a card that a signer may confuse with its public_key: the key in
// metadata.age_recipient, and the earlier keys of its key chain, newest first. It does not check the chain.
func OtherKeys(card wire.Card, n int) []*PublicKey {
	var keys []*PublicKey
	add := func(key *PublicKey, err error) {
		if err == nil && len(keys) < n {
			keys = append(keys, key)
		}
	}
	if recipient := card.Metadata.GetStr("age_recipient"); recipient != "" {
		add(ParsePublicKey(recipient))
	}
	links := strings.Fields(card.KeyChain())
	for _, link := range slices.Backward(links[max(0, len(links)-n):]) {
		oldKey, _, _ := strings.Cut(link, ",")
		add(parseChainKey(oldKey))
	}
	return keys
}

// Excerpts returns the parts of Expected and Signed around the first difference, or empty strings if they do not differ.
// The caller must remove control characters before showing them.
func (d Diagnosis) Excerpts() (expected, signed string) {
	const before, after = 24, 24 // bytes
	at, ok := d.Difference()
	if !ok {
		return "", ""
	}
	cut := func(data []byte) string { return string(data[max(0, at-before):min(len(data), at+after)]) }
	return cut(d.Expected), cut(d.Signed)
}

// Difference returns the index of the first byte at which Expected and Signed differ. ok is false if Signed is unknown
// or equal to Expected.
func (d Diagnosis) Difference() (at int, ok bool) {
	if d.Signed == nil || bytes.Equal(d.Expected, d.Signed) {
		return 0, false
	}
	for at < min(len(d.Expected), len(d.Signed)) && d.Expected[at] == d.Signed[at] {
		at++
	}
	return at, true
}

// String returns the diagnosis in one line for the signer. It quotes only one byte each of Signed and Expected.
func (d Diagnosis) String() string {
	text := "no known mistake explains it"
	if len(d.Mistakes) > 0 {
		text = strings.Join(d.Mistakes, ", and ")
	}
	if at, ok := d.Difference(); ok {
		text += fmt.Sprintf("; offset %d is %s and must be %s", at, byteAt(d.Signed, at), byteAt(d.Expected, at))
	}
	return text + fmt.Sprintf("; sign the %d bytes whose SHA-256 is %x", len(d.Expected), sha256.Sum256(d.Expected))
}

func byteAt(data []byte, at int) string {
	if at >= len(data) {
		return "absent"
	}
	return fmt.Sprintf("0x%02x", data[at])
}

// repairSignature converts a signature that is written in another known way, such as hex, to base64. It also returns the mistake.
func repairSignature(text string) (repaired, mistake string) {
	repaired, mistake = strings.Join(strings.Fields(text), ""), "the signature contains white space or a prefix"
	repaired = strings.TrimPrefix(repaired, "ed25519:")
	if raw, ok := decodeBase64(repaired); ok && len(raw) == hex.EncodedLen(ed25519.SignatureSize) {
		repaired = string(raw) // the signer wrote the hex text in base64
	}
	if raw, err := hex.DecodeString(repaired); err == nil {
		return encodeBase64(raw), "the signature is written in hex instead of base64"
	}
	return repaired, mistake
}

// verifyEd25519ph checks a signature of the variant Ed25519ph (RFC 8032 §5.1) over a SHA-512 digest.
func (k *PublicKey) verifyEd25519ph(digest []byte, signature string) error {
	if k.kind != KindEd25519 {
		return ErrBadSignature
	}
	sig, err := decodeSignature(signature)
	if err != nil {
		return err
	}
	return ed25519.VerifyWithOptions(k.canonical, digest, sig, &ed25519.Options{Hash: crypto.SHA512})
}

// habits describes how a signer makes the bytes that it signs: for each row of habitTable, the index of the variant that
// the signer uses.
type habits [7]byte

// The rows of habitTable.
const (
	orderHabit  = iota // the order of keys
	spaceHabit         // white space between tokens
	placeHabit         // what the signer puts in the place of the signature
	partHabit          // which part of the message the signer signs
	escapeHabit        // which characters are escaped
	numberHabit        // how numbers are written
	hashHabit          // how the bytes are hashed before they are signed
)

// habitTable has the known variants of each habit, each with a weight and the text of the mistake. The first variant of
// a row is the right one. Another variant whose text is empty is not wrong either: a form of AM-14 uses it. Explain tries
// combinations in the order of their total weights, the smallest first.
var habitTable = [...][]struct {
	weight  int
	mistake string
}{
	orderHabit: {{0, ""}, {1, "the keys are not sorted"}},
	spaceHabit: {{0, ""}, {1, "there are spaces after commas and colons"}, {1, "the JSON is indented"}},
	placeHabit: {{0, ""}, {1, `the message was signed with "signature":""`}, {1, `the message was signed with "signature":null`}},
	partHabit:  {{0, ""}, {2, "only the payload was signed"}, {2, "a line break at the end was signed"}},
	escapeHabit: {
		{0, ""}, {0, ""}, {0, ""}, // JCS, ASCII, HTML
		{2, "slashes are escaped"}, {2, "slashes are escaped"}, // JCS, ASCII
	},
	numberHabit: {{0, ""}, {0, ""}, {2, "integers are written as floats"}}, // JCS, unchanged, with .0
	hashHabit: {
		{0, ""}, {2, "a SHA-256 of the bytes was signed"}, {2, "the hex text of a SHA-256 was signed"},
		{2, "a SHA-512 of the bytes was signed"}, {2, "the hex text of a SHA-512 was signed"}, {2, "the variant Ed25519ph was used"},
	},
}

// maxWeight is the largest total weight of a combination that Explain tries.
const maxWeight = 5

// habitCombinations returns the combinations of habits, in the order in which Explain tries them.
var habitCombinations = sync.OnceValue(func() []habits {
	all := []habits{{}}
	for row, variants := range habitTable {
		for _, h := range all {
			for index := 1; index < len(variants); index++ {
				if h[row] = byte(index); h.weight() <= maxWeight {
					all = append(all, h)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b habits) int { return cmp.Compare(a.weight(), b.weight()) })
	return all
})

// variant is a place in habitTable.
type variant struct{ row, index int }

func (h habits) has(v variant) bool { return int(h[v.row]) == v.index }

// findRedundantVariants returns the variants that make, for this message, the same bytes as an earlier variant of their
// row, so that Explain can leave them out.
func findRedundantVariants(message wire.Value) (redundant []variant) {
	for row, variants := range habitTable[:hashHabit] {
		seen := make(map[[sha256.Size]byte]bool, len(variants))
		for index := range variants {
			var h habits
			h[row] = byte(index)
			sum := sha256.Sum256(h.encode(message))
			if seen[sum] {
				redundant = append(redundant, variant{row, index})
			}
			seen[sum] = true
		}
	}
	return redundant
}

func (h habits) weight() (sum int) {
	for row, index := range h {
		sum += habitTable[row][index].weight
	}
	return sum
}

func (h habits) mistakes() (out []string) {
	for row, index := range h {
		if text := habitTable[row][index].mistake; text != "" {
			out = append(out, text)
		}
	}
	return out
}

// encode returns the bytes that a signer with these habits signs, before it hashes them. In encode and append, the
// numbers are the indexes of the variants in habitTable.
func (h habits) encode(message wire.Value) []byte {
	switch h[placeHabit] {
	case 0:
		message = message.Without("signature")
	case 1:
		message = message.With("signature", wire.Text(""))
	case 2:
		message = message.With("signature", wire.Value{})
	}
	if payload, ok := message.Get("payload"); ok && h[partHabit] == 1 {
		message = payload
	}
	data := h.append(nil, message, "\n")
	if h[partHabit] == 2 {
		data = append(data, '\n')
	}
	return data
}

// append appends the encoding of v. lineBreak is the line break and the indentation of v.
func (h habits) append(dst []byte, v wire.Value, lineBreak string) []byte {
	comma, colon, inner, end := ",", ":", "", ""
	switch h[spaceHabit] {
	case 1:
		comma, colon = ", ", ": "
	case 2:
		inner, end, colon = lineBreak+"  ", lineBreak, ": "
	}
	if v.Len() == 0 {
		inner, end = "", ""
	}
	switch v.Kind() {
	case wire.Object:
		members := v.Members()
		if h[orderHabit] == 0 {
			members = slices.SortedFunc(slices.Values(members), func(a, b wire.Member) int { return compareUTF16(a.Key, b.Key) })
		}
		dst = append(dst, '{')
		for i, m := range members {
			if i > 0 {
				dst = append(dst, comma...)
			}
			dst = append(dst, inner...)
			dst = append(h.append(dst, wire.Text(m.Key), ""), colon...)
			dst = h.append(dst, m.Value, lineBreak+"  ")
		}
		return append(append(dst, end...), '}')
	case wire.Array:
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, comma...)
			}
			dst = h.append(append(dst, inner...), v.At(i), lineBreak+"  ")
		}
		return append(append(dst, end...), ']')
	case wire.String:
		text, _ := v.Str()
		start := len(dst)
		dst = appendString(dst, text, [...]Form{JCS, ASCII, HTML, JCS, ASCII}[h[escapeHabit]])
		if h[escapeHabit] >= 3 {
			dst = append(dst[:start], bytes.ReplaceAll(dst[start:], []byte("/"), []byte(`\/`))...)
		}
		return dst
	case wire.Number:
		token, _ := v.Num()
		dst = AppendCanonical(dst, v, [...]Form{JCS, Plain, Python}[h[numberHabit]])
		if h[numberHabit] == 2 && !strings.ContainsAny(token, ".eE") {
			dst = append(dst, ".0"...)
		}
		return dst
	}
	return v.AppendJSON(dst)
}

// hashing is what a signer does with the bytes before it signs them.
type hashing byte

const (
	hashNone hashing = iota
	hashSHA256
	hashSHA256Hex
	hashSHA512
	hashSHA512Hex
	hashEd25519ph // the signature covers a SHA-512 as in RFC 8032
)

func (h hashing) apply(data []byte) []byte {
	short, long := sha256.Sum256(data), sha512.Sum512(data)
	return [...][]byte{data, short[:], []byte(hex.EncodeToString(short[:])), long[:], []byte(hex.EncodeToString(long[:])), long[:]}[h]
}
