// Package listing reads and writes the cards that a directory stores, with what the directory verified about each one.
package listing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/idna"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Meta is what the directory stores beside a card, in [store.Card.Meta].
type Meta struct {
	Derived  bool      `json:"derived,omitempty"`   // the id is derived from the key (AM-2)
	Proven   time.Time `json:"proven,omitzero"`     // when the key was last proven (AM-62)
	Endpoint time.Time `json:"endpoint,omitzero"`   // when the endpoint was proven (AM-63)
	Alive    time.Time `json:"alive,omitzero"`      // when the endpoint last answered (AM-63)
	Probed   time.Time `json:"probed,omitzero"`     // when the endpoint was last probed (AM-63)
	Misses   int       `json:"misses,omitempty"`    // number of failed probes in a row
	Replaced time.Time `json:"replaced,omitzero"`   // when the key changed without a proof by the old key (AM-60)
	Proof    string    `json:"key_proof,omitempty"` // the key proof header that covers the card as it is served
	// Current describes how the card got its key; its PublicKey is empty here.
	Current wire.KeyChange `json:"current"`
	// HandedOver lets a registration with another credential take over the card if it proves the key. Every
	// registration and renewal of the card clears it.
	HandedOver bool `json:"handed_over,omitempty"`
	// Retired are the earlier keys, oldest first, at most MaxRetired.
	Retired []wire.KeyChange `json:"retired,omitempty"`
}

// MaxRetired and MaxRetiredCard bound what one card can make the directory store. The key history leaves out older
// keys and larger cards, so a peer that pinned such a key cannot verify the rotation.
const (
	MaxRetired     = 8
	MaxRetiredCard = 16 << 10
)

// Distrust is how long the new key counts as unproven after a replacement (AM-60).
const Distrust = 72 * time.Hour

const pageSize = 500

// Times of probes (AM-63).
const (
	probeEvery  = 24 * time.Hour // between probes, minus up to a tenth to spread them
	probeMissed = time.Hour      // from the first miss to the next probe; four times as long after the second
	MaxMisses   = 3              // misses in a row that clear the proof
)

// ParseMeta returns the Meta of a card.
func ParseMeta(c store.Card) (Meta, error) {
	var m Meta
	if err := json.Unmarshal(c.Meta, &m); err != nil {
		return Meta{}, fmt.Errorf("read the metadata of card %s: %w: %w", c.ID, store.ErrDamaged, err)
	}
	return m, nil
}

// Encode returns the JSON of m. It writes <, > and & in retired cards without escapes.
func (m Meta) Encode() []byte {
	data, err := wire.Encode(m)
	if err != nil {
		panic("listing: encode metadata: " + err.Error()) // impossible: m has only times, numbers and texts
	}
	return bytes.TrimSpace(data)
}

// DistrustEnd returns when the new key counts as proven after a replacement. It is zero if the key was never replaced
// or is not proven.
func (m Meta) DistrustEnd() time.Time {
	if m.Replaced.IsZero() || m.Proven.IsZero() {
		return time.Time{}
	}
	return m.Replaced.Add(Distrust)
}

// Verification returns what is shown beside the card at now (AM-61).
func (m Meta) Verification(now time.Time) wire.Verification {
	v := wire.Verification{
		Key:          orNil(m.Proven),
		Endpoint:     orNil(m.Endpoint),
		Alive:        orNil(m.Alive),
		ID:           "opaque",
		KeyChangedAt: orNil(m.Replaced),
	}
	if m.Derived {
		v.ID = "derived"
	}
	if now.Before(m.DistrustEnd()) {
		v.Key = nil
	}
	return v
}

// Checks lists the checks that hold at now. Filters find cards by them.
func (m Meta) Checks(now time.Time) []Check {
	var list []Check
	if !m.Proven.IsZero() && !now.Before(m.DistrustEnd()) {
		list = append(list, KeyProven)
	}
	if !m.Endpoint.IsZero() {
		list = append(list, EndpointProven)
	}
	if !m.Alive.IsZero() && m.Misses == 0 {
		list = append(list, Alive)
	}
	return list
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// History lists the keys of a card, the current key last (AM-60).
func (m Meta) History(c store.Card, publicKey string) wire.KeyHistory {
	current := m.Current
	current.PublicKey = publicKey
	return wire.KeyHistory{AgentID: wire.AgentID(c.ID), Keys: append(m.Retired[:len(m.Retired):len(m.Retired)], current)}
}

// Check is a fact about a card that a directory verifies itself (AM-61).
type Check string

const (
	KeyProven      Check = "key"      // proven (AM-62), and not replaced in the last 72 hours (AM-60)
	EndpointProven Check = "endpoint" // the endpoint returned the card (AM-63), or the agent connected to its mailbox here (AM-66)
	Alive          Check = "alive"    // the last probe or connection succeeded
)

// Checks are all checks.
var Checks = []Check{KeyProven, EndpointProven, Alive}

// SetProof records the key proof that covers the card as it is served: its header, and the text that it signs. An
// empty header clears the proof, but not the time of the last one.
func (m *Meta) SetProof(header, text string, now time.Time) {
	m.Proof = header
	if header == "" {
		return
	}
	m.Proven = now
	if m.Current.Proof == "" {
		m.Current.Proof, m.Current.ProofText = header, text
	}
}

// RetireKey moves the current key, publicKey, to the retired keys.
func (m *Meta) RetireKey(publicKey string, now time.Time) {
	retired := m.Current
	retired.PublicKey, retired.Retired = publicKey, now
	if len(retired.Card.JSON()) > MaxRetiredCard {
		retired.Card = wire.Value{}
	}
	m.Retired = append(m.Retired, retired)
	m.Retired = m.Retired[max(0, len(m.Retired)-MaxRetired):]
	m.Current = wire.KeyChange{Since: now}
	m.ForgetEndpoint() // the proof was for a card with the retired key
}

// AddProbe records that the endpoint was probed, and whether it answered with the right card.
func (m *Meta) AddProbe(answered bool, now time.Time) {
	m.Probed = now
	if answered {
		m.Endpoint, m.Alive, m.Misses = now, now, 0
		return
	}
	if m.Misses++; m.Misses >= MaxMisses {
		m.Endpoint, m.Misses = time.Time{}, MaxMisses
	}
}

// ForgetEndpoint clears everything that is known about the endpoint.
func (m *Meta) ForgetEndpoint() {
	m.Endpoint, m.Alive, m.Probed, m.Misses = time.Time{}, time.Time{}, time.Time{}, 0
}

// IsProbeDue reports whether the directory should probe the endpoint of the card now. A probe is also due when the key
// counts as proven again after a replacement, because the probe updates the index terms by which filters find the card.
func (m Meta) IsProbeDue(id string, now time.Time) bool {
	regained := m.Probed.Before(m.DistrustEnd()) && !now.Before(m.DistrustEnd())
	return regained || !now.Before(m.nextProbe(id))
}

// nextProbe returns when the endpoint should be probed next. For an endpoint that was never probed, it returns the
// zero time, which means at once.
func (m Meta) nextProbe(id string) time.Time {
	switch {
	case m.Probed.IsZero():
		return time.Time{}
	case m.Misses == 0:
		h := fnv.New32a()
		_, _ = h.Write([]byte(id)) // never fails
		return m.Probed.Add(probeEvery - time.Duration(h.Sum32()%100)*probeEvery/1000)
	case m.Misses < MaxMisses:
		return m.Probed.Add(probeMissed << (2 * (m.Misses - 1))) // 1 h after the first miss, 4 h after the second
	}
	return m.Probed.Add(probeEvery)
}

// Get returns the live card with this id, or [wire.ErrNoAgent].
func Get(ctx context.Context, cards store.Cards, id wire.AgentID, now time.Time) (store.Card, error) {
	if !id.Valid() {
		return store.Card{}, wire.ErrNoAgent
	}
	c, err := cards.Get(ctx, string(id), now)
	if errors.Is(err, store.ErrNotFound) {
		return store.Card{}, wire.ErrNoAgent
	}
	return c, err
}

// All returns the live cards, in the order of registration.
func All(ctx context.Context, cards store.Cards) iter.Seq2[store.Card, error] {
	q := store.CardQuery{Limit: pageSize, Now: wire.Now()}
	return store.All(func(after store.Position) (page []store.Card, next store.Position, err error) {
		q.After = after
		found, err := cards.List(ctx, q)
		if found.Next != nil {
			next = *found.Next
		}
		return found.Cards, next, err
	})
}

// ParseCard parses a stored card. It accepts http endpoints, because the card was acceptable when it was stored.
func ParseCard(c store.Card) (wire.Card, error) {
	tree, err := wire.ParseObject(c.Body)
	if err != nil {
		return wire.Card{}, err
	}
	return wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
}

// Parse parses a stored card and its metadata.
func Parse(c store.Card) (wire.Card, Meta, error) {
	m, err := ParseMeta(c)
	if err != nil {
		return wire.Card{}, Meta{}, err
	}
	card, err := ParseCard(c)
	return card, m, err
}

// Text returns a string member of a stored card.
func Text(c store.Card, key string) (string, error) {
	tree, err := wire.ParseObject(c.Body)
	if err != nil {
		return "", err
	}
	return tree.GetStr(key), nil
}

// NewRecord returns the public record of a stored card.
func NewRecord(c store.Card, now time.Time) (wire.CardRecord, error) {
	tree, err := wire.ParseObject(c.Body)
	if err != nil {
		return wire.CardRecord{}, fmt.Errorf("read card %s: %w", c.ID, err)
	}
	m, err := ParseMeta(c)
	if err != nil {
		return wire.CardRecord{}, err
	}
	return wire.CardRecord{
		Card:         tree,
		RegisteredAt: c.Registered,
		ExpiresAt:    c.Expires,
		Verification: m.Verification(now),
		KeyProof:     m.Proof,
	}, nil
}

// SameKey returns an error unless the texts a and b are the same public key. The error describes b as the answer of an
// endpoint.
func SameKey(a, b string) error {
	if a == b {
		return nil
	}
	x, err := signing.ParsePublicKey(a)
	if err != nil {
		return err
	}
	y, err := signing.ParsePublicKey(b)
	if err != nil {
		return fmt.Errorf("the endpoint answers with a key that cannot be read: %w", err)
	}
	if x.Kind() != y.Kind() || !bytes.Equal(x.Canonical(), y.Canonical()) {
		return errors.New("the endpoint answers with another key")
	}
	return nil
}

// Host returns the host of a card's endpoint in the form of HostOf.
func Host(card wire.Card) string {
	u, err := url.Parse(card.Endpoint)
	if err != nil {
		return ""
	}
	return HostOf(u)
}

// HostOf returns the host of an endpoint in the form that bans, quotas and probe pauses compare: as the standard
// library's client looks it up, in lower case and without a final dot.
func HostOf(u *url.URL) string {
	host := u.Hostname()
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Fingerprint identifies a key, whatever the form of its text. It leaves out the kind, because "ed25519:" with 64 hex
// digits would be read as a key.
func Fingerprint(key *signing.PublicKey) string {
	_, sum, _ := strings.Cut(key.Fingerprint(), ":")
	return sum
}
