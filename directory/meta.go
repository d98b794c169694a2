package directory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// meta is what the directory stores beside a card, in [store.Card.Meta].
type meta struct {
	Derived  bool      `json:"derived,omitempty"`   // the id is derived from the key (AM-2)
	Proven   time.Time `json:"proven,omitzero"`     // when the key was last proven (AM-62)
	Endpoint time.Time `json:"endpoint,omitzero"`   // when the endpoint was proven (AM-63)
	Alive    time.Time `json:"alive,omitzero"`      // when the endpoint last answered (AM-63)
	Probed   time.Time `json:"probed,omitzero"`     // when the endpoint was last probed (AM-63)
	Misses   int       `json:"misses,omitempty"`    // number of failed probes in a row
	Replaced time.Time `json:"replaced,omitzero"`   // when the key changed without a proof by the old key (AM-60)
	Proof    string    `json:"key_proof,omitempty"` // the header that covers the card as it is served
	// Current describes how the card got its key; its PublicKey is empty here.
	Current wire.KeyChange `json:"current"`
	// HandedOver lets a registration that proves the key take over the card with another credential. Every registration
	// and renewal of the card clears it.
	HandedOver bool `json:"handed_over,omitempty"`
	// Retired are the earlier keys, oldest first, at most maxRetired.
	Retired []wire.KeyChange `json:"retired,omitempty"`
}

// maxRetired and maxRetiredCard bound what one card can make the directory store. The key history then lacks older keys
// and larger cards, so a peer that pinned such a key cannot verify the rotation.
const (
	maxRetired     = 8
	maxRetiredCard = 16 << 10
)

// distrust is how long the new key counts as unproven after a replacement (AM-60).
const distrust = 72 * time.Hour

func parseMeta(c store.Card) (meta, error) {
	var m meta
	if err := json.Unmarshal(c.Meta, &m); err != nil {
		return meta{}, fmt.Errorf("read what is kept beside %s: %w", c.ID, err)
	}
	return m, nil
}

// encode returns the JSON of m, in which the signs of retired cards have no escapes.
func (m meta) encode() ([]byte, error) {
	data, err := httpapi.Encode(m)
	if err != nil {
		return nil, fmt.Errorf("write what is kept beside a card: %w", err)
	}
	return bytes.TrimSpace(data), nil
}

// distrustEnd returns when verification changes although the card does not; zero for never.
func (m meta) distrustEnd() time.Time {
	if m.Replaced.IsZero() || m.Proven.IsZero() {
		return time.Time{}
	}
	return m.Replaced.Add(distrust)
}

// verification returns what is shown beside the card at now (AM-61).
func (m meta) verification(now time.Time) wire.Verification {
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
	if now.Before(m.distrustEnd()) {
		v.Key = nil
	}
	return v
}

// validChecks lists the checks that hold at now. Filters find cards by them.
func (m meta) validChecks(now time.Time) []Check {
	var list []Check
	if !m.Proven.IsZero() && !now.Before(m.distrustEnd()) {
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

// history lists the keys of a card, the current key last (AM-60).
func (m meta) history(c store.Card, publicKey string) wire.KeyHistory {
	current := m.Current
	current.PublicKey = publicKey
	return wire.KeyHistory{AgentID: wire.AgentID(c.ID), Keys: append(m.Retired[:len(m.Retired):len(m.Retired)], current)}
}
