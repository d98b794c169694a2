package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// nodeID is the record of an id that is not the one of the configured card: given by a directory, or kept over a
// change of the key that it was derived from.
type nodeID struct {
	AgentID  wire.AgentID `json:"agent_id"`
	KeyChain string       `json:"key_chain,omitempty"` // as the last rotation wrote it; see [Node.chainAtStart]
}

// adopt takes over an id that a directory gave, before anything is signed with it.
func (n *Node) adopt(ctx context.Context, id wire.AgentID) error {
	if err := n.keepID(ctx, nodeID{AgentID: id}); err != nil {
		return err
	}
	return n.rename(nodeID{AgentID: id})
}

func (n *Node) keepID(ctx context.Context, id nodeID) error {
	body, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return n.keep(context.WithoutCancel(ctx), keyNodeID, body, time.Now())
}

// rename puts id on the card, and the key chain that leads from it to the node's key. The endpoint follows if it is the
// mailbox of the old id (AM-66).
func (n *Node) rename(id nodeID) error {
	old := n.identity.Load()
	tree := old.Card.Tree.With("agent_id", wire.Text(string(id.AgentID)))
	if base, ok := strings.CutSuffix(old.Card.Endpoint, "/mailbox/"+string(old.Card.ID)); ok {
		tree = tree.With("endpoint", wire.Text(base+"/mailbox/"+string(id.AgentID)))
	}
	if err := n.become(old.Key, tree); err != nil {
		return err
	}
	card := n.Card().Tree
	return n.become(old.Key, withKeyChain(card, n.chainAtStart(id.KeyChain, time.Now())))
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
// id stays. Until a directory has followed, the old key is needed for it; no private key stands in the database.
func (n *Node) RotateKey(ctx context.Context) ([]Listing, error) {
	if n.cfg.SaveKey == nil {
		return nil, owner.Fault(http.StatusConflict, "this node cannot store a new key", "")
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
			k.tend(ctx, p, renewing)
		}
	})
}

// rotate makes key the node's own. Each record is written before what depends on it: the id with its key chain and which
// key was the old one first, then the new key, then it is used.
func (k *keeper) rotate(ctx context.Context, key *signing.PrivateKey) error {
	old := k.n.identity.Load()
	was := old.Key.Public().Fingerprint()
	chain := k.n.chainTo(key, time.Now())
	if err := k.n.keepID(ctx, nodeID{old.Card.ID, chain}); err != nil {
		return err
	}
	for _, p := range k.places {
		k.mu.Lock()
		s := p.state
		k.mu.Unlock()
		if s.AgentID != "" && s.PreviousKey == "" {
			s.PreviousKey = was
		}
		if err := k.put(ctx, p, s, time.Time{}); err != nil {
			return fmt.Errorf("note the old key: %w", err)
		}
	}
	card := withKeyChain(old.Card.Tree.With("public_key", wire.Text(key.PublicText())), chain)
	if err := k.n.cfg.SaveKey(key, card); err != nil {
		return fmt.Errorf("store the new key: %w", err)
	}
	k.retired[was] = old.Key
	k.rotated.Store(time.Now().Unix())
	return k.n.become(key, card)
}

// previousKey is the key that a directory still lists; nil where it is the current one, for then the rotation did not
// happen, and where it is lost: then peers ask their owners, as after any replaced key (AM-60). The caller holds work.
func (k *keeper) previousKey(fingerprint string, current *signing.PrivateKey) *signing.PrivateKey {
	if fingerprint == "" || fingerprint == current.Public().Fingerprint() {
		return nil
	}
	if key := k.retired[fingerprint]; key != nil || k.n.cfg.RetiredKey == nil {
		return key
	}
	key, err := k.n.cfg.RetiredKey(fingerprint)
	if err == nil && key.Public().Fingerprint() != fingerprint {
		err = errors.New("it is another key")
	}
	if err != nil {
		k.n.log.Warn("the key before the rotation is lost: peers will ask their owners", "fingerprint", fingerprint, "err", err)
		return nil
	}
	k.retired[fingerprint] = key
	return key
}

// justRotated says whether peers may still have the card with the old key: they keep one for at most 10 minutes
// (AM-45), and ask again for a bad signature at most once a minute (AM-11).
func (k *keeper) justRotated() bool {
	const known = 12 * time.Minute
	return time.Since(time.Unix(k.rotated.Load(), 0)) < known
}
