package signing

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// MaxKeyChain is the largest number of links of a key chain (AM-2).
const MaxKeyChain = 16

// KeyChain has the keys of an agent id, oldest first. Each key has signed that the next key replaces it.
type KeyChain []*PublicKey

// chainSkew bounds how far a link may be dated in the future, and the difference between the time of a link and the
// time inside its OpenPGP signature.
const chainSkew = 5 * time.Minute

// ParseKeyChain reads metadata.key_chain of a card and checks every signature in it (AM-2). The text is up to
// [MaxKeyChain] links, separated by spaces. A link is four fields, separated by commas: the old key and the
// new key, both as base64 of their text on a card, the time, and the old key's signature over [successionText]. Each
// old key must be usable at the time of its link; it may expire later.
func ParseKeyChain(id wire.AgentID, text string, now time.Time) (KeyChain, error) {
	if len(text) > wire.MaxCard || strings.Count(text, " ") >= MaxKeyChain {
		return nil, fmt.Errorf("the key chain has more than %d links", MaxKeyChain)
	}
	var chain KeyChain
	for i, link := range strings.Split(text, " ") {
		previous, next, err := parseLink(id, link, now)
		if err != nil {
			return nil, fmt.Errorf("link %d of the key chain: %w", i+1, err)
		}
		switch {
		case len(chain) == 0:
			chain = append(chain, previous)
		case !chain[len(chain)-1].sameAs(previous):
			return nil, fmt.Errorf("link %d of the key chain does not begin with the key at which the previous link ends", i+1)
		}
		if slices.ContainsFunc(chain, next.sameAs) {
			return nil, fmt.Errorf("link %d of the key chain goes back to an earlier key", i+1)
		}
		chain = append(chain, next)
	}
	return chain, nil
}

// RetiredKeys returns the keys that the agent of card may have had at t and has replaced, if the card's key chain ends with
// key. It allows for clocks that differ, so it may return several keys.
func RetiredKeys(card wire.Card, key *PublicKey, t, now time.Time) (keys []*PublicKey) {
	text := card.KeyChain()
	chain, err := ParseKeyChain(card.ID, text, now)
	if err != nil || !chain[len(chain)-1].sameAs(key) {
		return nil
	}
	var since time.Time // when the agent got the key
	for i, link := range strings.Split(text, " ") {
		replaced, _ := wire.ParseTime(strings.Split(link, ",")[2])
		if !t.Before(since.Add(-chainSkew)) && t.Before(replaced.Add(chainSkew)) {
			keys = append(keys, chain[i])
		}
		since = replaced
	}
	return keys
}

func parseLink(id wire.AgentID, link string, now time.Time) (previous, next *PublicKey, err error) {
	fields := strings.Split(link, ",")
	if len(fields) != 4 {
		return nil, nil, errors.New("must have four fields")
	}
	if previous, err = parseChainKey(fields[0]); err != nil {
		return nil, nil, fmt.Errorf("old key: %w", err)
	}
	if next, err = parseChainKey(fields[1]); err != nil {
		return nil, nil, fmt.Errorf("new key: %w", err)
	}
	at, ok := wire.ParseTime(fields[2])
	if !ok || at.After(now.Add(chainSkew)) {
		return nil, nil, errors.New("has no time, or a time in the future")
	}
	window := Window{From: at.Add(-chainSkew), To: at.Add(chainSkew)}
	return previous, next, previous.Verify(successionText(id, next, fields[2]), fields[3], window, at)
}

func parseChainKey(field string) (*PublicKey, error) {
	text, err := base64.StdEncoding.Strict().DecodeString(field)
	if err != nil {
		return nil, errors.New("is not base64")
	}
	return ParsePublicKey(string(text))
}

// successionText returns the text that an old key signs for the key that replaces it (AM-2).
func successionText(id wire.AgentID, next *PublicKey, stamp string) []byte {
	return []byte(strings.Join([]string{"agentmesh-key-succession-v1", string(id), next.Fingerprint(), stamp, ""}, "\n"))
}

// ExtendKeyChain returns chain with one more link, in which k signs that successor is now the key of id. For the first
// link, chain is "". The error is [ErrKeyChainFull] if the chain has [MaxKeyChain] links already.
func (k *PrivateKey) ExtendKeyChain(id wire.AgentID, chain string, successor *PrivateKey, at time.Time) (string, error) {
	if chain != "" && strings.Count(chain, " ")+1 >= MaxKeyChain {
		return "", ErrKeyChainFull
	}
	stamp := wire.FormatTime(at)
	signature, err := k.Sign(successionText(id, successor.Public(), stamp))
	if err != nil {
		return "", err
	}
	encode := func(key *PrivateKey) string {
		return base64.StdEncoding.EncodeToString([]byte(strings.TrimSpace(key.PublicText())))
	}
	link := strings.Join([]string{encode(k), encode(successor), stamp, signature}, ",")
	return strings.TrimPrefix(chain+" "+link, " "), nil
}

// ErrKeyChainFull means that a key chain has [MaxKeyChain] links.
var ErrKeyChainFull = fmt.Errorf("the key chain already has %d links, the maximum", MaxKeyChain)

// ProvesID returns nil if the agent id of card belongs to key, the key of the card (AM-2): the id is derived from key,
// or from the first key of the card's key chain, which must end with key. Otherwise the error has the reason and no
// text from the card.
func ProvesID(card wire.Card, key *PublicKey, now time.Time) error {
	if key.AgentID() == card.ID {
		return nil
	}
	text := card.KeyChain()
	if !card.ID.HasDerivedShape() || text == "" {
		return errors.New("the id is not derived from the key, and the card has no key chain")
	}
	chain, err := ParseKeyChain(card.ID, text, now)
	switch {
	case err != nil:
		return err
	case chain[0].AgentID() != card.ID:
		return errors.New("the key chain does not begin with the key that the id is derived from")
	case !chain[len(chain)-1].sameAs(key):
		return errors.New("the key chain does not end with the key on the card")
	}
	return nil
}

// Vouches reports whether the chain ends with key and contains the key with this fingerprint before the end. The
// earlier key then vouches, directly or through later keys, for the last key.
func (c KeyChain) Vouches(fingerprint string, key *PublicKey) bool {
	matches := func(k *PublicKey) bool { return k.Fingerprint() == fingerprint }
	return len(c) > 1 && c[len(c)-1].sameAs(key) && slices.ContainsFunc(c[:len(c)-1], matches)
}

// sameAs reports whether both are the same key, even if their texts differ.
func (k *PublicKey) sameAs(other *PublicKey) bool { return k.Fingerprint() == other.Fingerprint() }
