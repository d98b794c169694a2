package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// nodeID is the record of an id that is not the one of the configured card: given by a directory, or kept over a
// change of the key that it was derived from.
type nodeID struct {
	AgentID wire.AgentID `json:"agent_id"`
}

// adopt takes over an id that a directory gave, before anything is signed with it.
func (n *Node) adopt(ctx context.Context, id wire.AgentID) error {
	if err := n.keepID(ctx, id); err != nil {
		return err
	}
	return n.rename(id)
}

func (n *Node) keepID(ctx context.Context, id wire.AgentID) error {
	body, err := json.Marshal(nodeID{AgentID: id})
	if err != nil {
		return err
	}
	return n.keep(context.WithoutCancel(ctx), keyNodeID, body, time.Now())
}

// rename puts id on the card.
func (n *Node) rename(id wire.AgentID) error {
	old := n.identity.Load()
	return n.become(old.Key, old.Card.Tree.With("agent_id", wire.Text(string(id))))
}

// become takes on a key and a card. What cards may name was checked when the first one was configured.
func (n *Node) become(key *signing.PrivateKey, tree wire.Value) error {
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		return fmt.Errorf("make own card: %w", err)
	}
	n.identity.Store(&Identity{Key: key, Card: card})
	return nil
}

// RotateKey gives the node a new signing key and the directories both proofs, so that peers follow (AM-60). The agent
// id stays. Until a directory has followed, the old key is kept for it, beside the new one's card.
func (n *Node) RotateKey(ctx context.Context) ([]Listing, error) {
	if n.cfg.SaveKey == nil {
		return nil, fault(http.StatusConflict, "this node cannot store a new key", "")
	}
	key, err := signing.GenerateEd25519()
	if err != nil {
		return nil, err
	}
	k := n.keeper
	k.work.Lock()
	if err := k.rotate(ctx, key); err != nil {
		k.work.Unlock()
		return nil, err
	}
	k.work.Unlock()
	return n.keeper.each(ctx, "", func(p *place) {
		if k.due(p, time.Now()) {
			k.tend(ctx, p, true)
		}
	})
}

// rotate makes key the node's own. Each record is written before what depends on it: the id and the old key first,
// then the new key, then it is used.
func (k *keeper) rotate(ctx context.Context, key *signing.PrivateKey) error {
	old := k.n.identity.Load()
	text, err := old.Key.MarshalText()
	if err != nil {
		return fmt.Errorf("keep the old key: %w", err)
	}
	if err := k.n.keepID(ctx, old.Card.ID); err != nil {
		return err
	}
	for _, p := range k.places {
		k.mu.Lock()
		s := p.state
		k.mu.Unlock()
		if s.AgentID != "" && s.PreviousKey == "" {
			s.PreviousKey = string(text)
		}
		if err := k.put(ctx, p, s, time.Time{}); err != nil {
			return fmt.Errorf("keep the old key: %w", err)
		}
	}
	if err := k.n.cfg.SaveKey(key); err != nil {
		return fmt.Errorf("store the new key: %w", err)
	}
	k.rotated.Store(time.Now().Unix())
	return k.n.become(key, old.Card.Tree.With("public_key", wire.Text(key.PublicText())))
}

// previousKey is the key that a directory still lists; nil where it is the current one.
func previousKey(text string, current *signing.PrivateKey) (*signing.PrivateKey, error) {
	if text == "" {
		return nil, nil
	}
	key, err := signing.ParsePrivateKey([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("read the key before the rotation: %w", err)
	}
	if key.Public().Fingerprint() == current.Public().Fingerprint() {
		return nil, nil // the rotation did not happen
	}
	return key, nil
}

// justRotated says whether peers may still have the card with the old key: they keep one for at most 10 minutes
// (AM-45), and ask again for a bad signature at most once a minute (AM-11).
func (k *keeper) justRotated() bool {
	const known = 12 * time.Minute
	return time.Since(time.Unix(k.rotated.Load(), 0)) < known
}
