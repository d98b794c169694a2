package directory

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// meta is what the directory keeps beside a card, in [store.Card.Meta].
type meta struct {
	Derived  bool      `json:"derived,omitempty"`   // the id leads to the key (AM-2)
	Proven   time.Time `json:"proven,omitzero"`     // when the key was last proven (AM-62)
	Endpoint time.Time `json:"endpoint,omitzero"`   // when the endpoint was proven (AM-63)
	Alive    time.Time `json:"alive,omitzero"`      // when the endpoint answered last (AM-63)
	Probed   time.Time `json:"probed,omitzero"`     // when the endpoint was last asked (AM-63)
	Misses   int       `json:"misses,omitempty"`    // how often in a row it did not answer as it should
	Replaced time.Time `json:"replaced,omitzero"`   // when the key changed without its predecessor's word (AM-60)
	Proof    string    `json:"key_proof,omitempty"` // the header that covers the card as it is served
	// Current is how the key came to be; its PublicKey is that of the card.
	Current wire.KeyChange `json:"current"`
	// HandedOver lets who proves the key take the card with another credential; any write of its owner ends it.
	HandedOver bool `json:"handed_over,omitempty"`
	// Retired are the keys before, oldest first, at most maxRetired.
	Retired []wire.KeyChange `json:"retired,omitempty"`
}

// What one card may make us keep. Who pinned an older key, or one whose successor was announced by a larger card,
// asks its owner.
const (
	maxRetired     = 8
	maxRetiredCard = 16 << 10
)

// distrust is how long a replaced key counts as unproven (AM-60).
const distrust = 72 * time.Hour

func parseMeta(c store.Card) (meta, error) {
	var m meta
	if err := json.Unmarshal(c.Meta, &m); err != nil {
		return meta{}, fmt.Errorf("read what is kept beside %s: %w", c.ID, err)
	}
	return m, nil
}

func (m meta) encode() ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write what is kept beside a card: %w", err)
	}
	return data, nil
}

// settles returns the instant at which verification changes without a change of the card; zero for never.
func (m meta) settles() time.Time {
	if m.Replaced.IsZero() || m.Proven.IsZero() {
		return time.Time{}
	}
	return m.Replaced.Add(distrust)
}

// verification is what is shown beside the card at now (AM-61).
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
	if now.Before(m.settles()) {
		v.Key = nil
	}
	return v
}

// passed lists the checks that hold at now, as filters find them.
func (m meta) passed(now time.Time) []Check {
	var list []Check
	if !m.Proven.IsZero() && !now.Before(m.settles()) {
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

// history lists the keys of a card, the current one last (AM-60).
func (m meta) history(c store.Card, publicKey string) wire.KeyHistory {
	current := m.Current
	current.PublicKey = publicKey
	return wire.KeyHistory{AgentID: wire.AgentID(c.ID), Keys: append(m.Retired[:len(m.Retired):len(m.Retired)], current)}
}
