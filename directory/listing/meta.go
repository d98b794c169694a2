package listing

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Head is the part of [Meta] that lists show, which [ParseHead] reads without the rest.
type Head struct {
	Derived  bool      `json:"derived,omitempty"`   // the id is derived from the key (AM-2)
	Proven   time.Time `json:"proven,omitzero"`     // when the key was last proven (AM-62)
	Endpoint time.Time `json:"endpoint,omitzero"`   // when the endpoint was proven (AM-63)
	Alive    time.Time `json:"alive,omitzero"`      // when the endpoint last answered (AM-63)
	Probed   time.Time `json:"probed,omitzero"`     // when the endpoint was last probed (AM-63)
	Misses   int       `json:"misses,omitempty"`    // number of failed probes in a row, at most MaxMisses
	Replaced time.Time `json:"replaced,omitzero"`   // when the key changed without a proof by the old key (AM-60)
	Proof    string    `json:"key_proof,omitempty"` // the key proof header that covers the card as it is served
	// HandedOver lets a registration with another credential take over the card if it proves the key. Every
	// registration and renewal of the card clears it.
	HandedOver bool      `json:"handed_over,omitempty"`
	KeySince   time.Time `json:"-"` // Meta.Current.Since
}

// Meta is what the directory stores beside a card, in [store.Card.Meta]. Its JSON is a part of an export.
type Meta struct {
	Head
	// Current describes how the card got its key; its PublicKey is empty here.
	Current wire.KeyChange `json:"current"`
	// Retired are the earlier keys, oldest first, at most MaxRetired.
	Retired []wire.KeyChange `json:"retired,omitempty"`
}

// The bits of the first byte of an encoded Meta.
const (
	flagDerived = 1 << iota
	flagHandedOver
)

var errMeta = errors.New("the metadata is cut short")

// Encode returns the stored form of m: a byte of flags, the misses, the times in milliseconds since 1970 (0 for none) as
// varints, the length of the proof as a varint, the proof and, unless there is only one key without a proof, the JSON of
// the keys, with <, > and & of retired cards as they are.
func (m Meta) Encode() []byte {
	out := []byte{0, byte(m.Misses)}
	if m.Derived {
		out[0] |= flagDerived
	}
	if m.HandedOver {
		out[0] |= flagHandedOver
	}
	for _, t := range [...]time.Time{m.Proven, m.Endpoint, m.Alive, m.Probed, m.Replaced, m.Current.Since} {
		var millis int64
		if !t.IsZero() {
			millis = t.UnixMilli()
		}
		out = binary.AppendVarint(out, millis)
	}
	out = append(binary.AppendUvarint(out, uint64(len(m.Proof))), m.Proof...)
	if c := m.Current; c.Proof+c.PreviousProof+c.ProofText == "" && c.Card.IsNull() && len(m.Retired) == 0 {
		return out
	}
	data, err := wire.Encode(Meta{Current: m.Current, Retired: m.Retired}) // without the head, whose members are omitted
	if err != nil {
		panic("listing: encode metadata: " + err.Error()) // impossible: it has only times and texts
	}
	return append(out, bytes.TrimSpace(data)...)
}

// ParseHead returns the head of a card's [Meta].
func ParseHead(c store.Card) (Head, error) {
	h, _, err := parseHead(c)
	return h, err
}

// ParseMeta returns the Meta of a card.
func ParseMeta(c store.Card) (m Meta, err error) {
	var rest []byte
	m.Head, rest, err = parseHead(c)
	if err == nil && len(rest) > 0 {
		if err = json.Unmarshal(rest, &m); err != nil {
			err = damaged(c, err)
		}
	}
	m.Current.Since = m.KeySince
	return m, err
}

// parseHead returns the head and the JSON of the keys.
func parseHead(c store.Card) (h Head, rest []byte, err error) {
	if len(c.Meta) < 2 {
		return Head{}, nil, damaged(c, errMeta)
	}
	h.Derived, h.HandedOver, h.Misses = c.Meta[0]&flagDerived != 0, c.Meta[0]&flagHandedOver != 0, int(c.Meta[1])
	rest = c.Meta[2:]
	var times [6]time.Time
	for i := range times {
		millis, n := binary.Varint(rest)
		if n <= 0 {
			return Head{}, nil, damaged(c, errMeta)
		}
		if rest = rest[n:]; millis != 0 {
			times[i] = time.UnixMilli(millis).UTC()
		}
	}
	h.Proven, h.Endpoint, h.Alive, h.Probed, h.Replaced, h.KeySince = times[0], times[1], times[2], times[3], times[4], times[5]
	size, n := binary.Uvarint(rest)
	if n <= 0 || size > uint64(len(rest)-n) {
		return Head{}, nil, damaged(c, errMeta)
	}
	h.Proof = string(rest[n:][:size])
	return h, rest[n:][size:], nil
}

func damaged(c store.Card, err error) error {
	return fmt.Errorf("read the metadata of card %s: %w: %w", c.ID, store.ErrDamaged, err)
}
