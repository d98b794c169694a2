// Package listing reads and writes the cards that a directory stores, with what the directory verified about each one.
package listing

import (
	"bytes"
	"context"
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

// DistrustEnd returns when the new key counts as proven after a replacement. It is zero if the key was never replaced
// or is not proven.
func (h Head) DistrustEnd() time.Time {
	if h.Replaced.IsZero() || h.Proven.IsZero() {
		return time.Time{}
	}
	return h.Replaced.Add(Distrust)
}

// ChangesAt returns when Verification changes after now without a write of the card; zero for never.
func (h Head) ChangesAt(now time.Time) time.Time {
	if end := h.DistrustEnd(); now.Before(end) {
		return end
	}
	return time.Time{}
}

// Verification returns what is shown beside the card at now (AM-61).
func (h Head) Verification(now time.Time) wire.Verification {
	v := wire.Verification{
		Key:          orNil(h.Proven),
		Endpoint:     orNil(h.Endpoint),
		Alive:        orNil(h.Alive),
		ID:           "opaque",
		KeyChangedAt: orNil(h.Replaced),
	}
	if h.Derived {
		v.ID = "derived"
	}
	if now.Before(h.DistrustEnd()) {
		v.Key = nil
	}
	return v
}

// Checks lists the checks that hold at now. Filters find cards by them.
func (h Head) Checks(now time.Time) []Check {
	var list []Check
	if !h.Proven.IsZero() && !now.Before(h.DistrustEnd()) {
		list = append(list, KeyProven)
	}
	if !h.Endpoint.IsZero() {
		list = append(list, EndpointProven)
	}
	if !h.Alive.IsZero() && h.Misses == 0 {
		list = append(list, Alive)
	}
	return list
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t)
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
func (h *Head) AddProbe(answered bool, now time.Time) {
	h.Probed = now
	if answered {
		h.Endpoint, h.Alive, h.Misses = now, now, 0
		return
	}
	if h.Misses++; h.Misses >= MaxMisses {
		h.Endpoint, h.Misses = time.Time{}, MaxMisses
	}
}

// ForgetEndpoint clears everything that is known about the endpoint.
func (h *Head) ForgetEndpoint() {
	h.Endpoint, h.Alive, h.Probed, h.Misses = time.Time{}, time.Time{}, time.Time{}, 0
}

// IsProbeDue reports whether the directory should probe the endpoint of the card now. A probe is also due when the key
// counts as proven again after a replacement, because the probe updates the index terms by which filters find the card.
func (h Head) IsProbeDue(id string, now time.Time) bool {
	regained := h.Probed.Before(h.DistrustEnd()) && !now.Before(h.DistrustEnd())
	return regained || !now.Before(h.nextProbe(id))
}

// nextProbe returns when the endpoint should be probed next. For an endpoint that was never probed, it returns the
// zero time, which means at once.
func (h Head) nextProbe(id string) time.Time {
	switch {
	case h.Probed.IsZero():
		return time.Time{}
	case h.Misses == 0:
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(id)) // never fails
		return h.Probed.Add(probeEvery - time.Duration(sum.Sum32()%100)*probeEvery/1000)
	case h.Misses < MaxMisses:
		return h.Probed.Add(probeMissed << (2 * (h.Misses - 1))) // 1 h after the first miss, 4 h after the second
	}
	return h.Probed.Add(probeEvery)
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
