package registration

import (
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// withKeyChain returns card with this key chain in its metadata, or without one if chain is "".
func withKeyChain(card wire.Value, chain string) wire.Value {
	meta, _ := card.Get("metadata")
	if chain == "" {
		if meta.GetStr(wire.MetaKeyChain) == "" {
			return card
		}
		return card.With("metadata", meta.Without(wire.MetaKeyChain))
	}
	return card.With("metadata", meta.With(wire.MetaKeyChain, wire.Text(chain)))
}

// chainTo returns the key chain for a rotation to key (AM-2), which leads from the key in the node's id to key. It is
// "" if the id is not derived from a key, or if no available key can vouch for the new key.
func (r *Registrar) chainTo(key *signing.PrivateKey, now time.Time) string {
	own := r.identity.Load()
	id := own.Card.ID
	if !id.HasDerivedShape() {
		return ""
	}
	err := signing.ProvesID(own.Card, own.Key.Public(), now)
	if err == nil {
		var chain string
		if chain, err = own.Key.ExtendKeyChain(id, own.Card.KeyChain(), key, now); err == nil {
			return chain
		}
	}
	return r.chainFromFirst(id, key, now, err)
}

// chainFromFirst returns a chain of one link to key, signed with the agent's first key, from which its id is derived.
// Use it if the old chain is full or missing. fault is the error of the old chain. If the first key is missing or does
// not match the id, chainFromFirst logs both errors and returns "".
func (r *Registrar) chainFromFirst(id wire.AgentID, key *signing.PrivateKey, now time.Time, fault error) string {
	var first *signing.PrivateKey
	var err error = fs.ErrNotExist
	if r.cfg.FirstKey != nil {
		first, err = r.cfg.FirstKey(id)
	}
	if err == nil && first.Public().AgentID() != id {
		err = errors.New("the stored key does not match the agent id")
	}
	var chain string
	if err == nil {
		chain, err = first.ExtendKeyChain(id, "", key, now)
	}
	if err != nil {
		r.cfg.Logger.Warn("no key chain leads from the agent id to the key: new directories refuse the id, and new peers ask their owners",
			"agent_id", id, "why", fault, "first_key", err)
		return ""
	}
	return chain
}

// chainAtStart returns the key chain for the card on which [Registrar.setID] puts an id, or "" if the card needs no
// chain or no chain leads to the node's key. stored is the chain of the last rotation. A rotation stores the chain
// before it replaces the key, so after an interrupted rotation the chain has one link too many.
func (r *Registrar) chainAtStart(stored string, now time.Time) string {
	own := r.identity.Load()
	key := own.Key.Public()
	if !own.Card.ID.HasDerivedShape() || key.AgentID() == own.Card.ID {
		return ""
	}
	err := errors.New("somebody replaced the key")
	shorter := stored[:max(strings.LastIndexByte(stored, ' '), 0)]
	for _, chain := range []string{stored, shorter} {
		if chain == "" {
			continue
		}
		meta, _ := withKeyChain(own.Card.Tree, chain).Get("metadata")
		if err = signing.ProvesID(wire.Card{ID: own.Card.ID, Metadata: meta}, key, now); err == nil {
			return chain
		}
	}
	return r.chainFromFirst(own.Card.ID, own.Key, now, err)
}
