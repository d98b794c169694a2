package registration

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
	KeyChain string       `json:"key_chain,omitempty"` // as the last rotation wrote it; see [Registrar.chainAtStart]
}

// adopt takes over an id that a directory gave, before anything is signed with it.
func (r *Registrar) adopt(ctx context.Context, id wire.AgentID) error {
	if err := r.keepID(ctx, nodeID{AgentID: id}); err != nil {
		return err
	}
	return r.rename(nodeID{AgentID: id})
}

func (r *Registrar) keepID(ctx context.Context, id nodeID) error {
	body, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return r.keep(context.WithoutCancel(ctx), keyNodeID, body, time.Now())
}

// rename puts id on the card, and the key chain that leads from it to the node's key. The endpoint follows if it is the
// mailbox of the old id (AM-66).
func (r *Registrar) rename(id nodeID) error {
	old := r.identity.Load()
	tree := old.Card.Tree.With("agent_id", wire.Text(string(id.AgentID)))
	if base, ok := strings.CutSuffix(old.Card.Endpoint, "/mailbox/"+string(old.Card.ID)); ok {
		tree = tree.With("endpoint", wire.Text(base+"/mailbox/"+string(id.AgentID)))
	}
	if err := r.become(old.Key, tree); err != nil {
		return err
	}
	card := r.identity.Load().Card.Tree
	return r.become(old.Key, withKeyChain(card, r.chainAtStart(id.KeyChain, time.Now())))
}

// become takes on a key and a card. What cards may name was checked when the first one was configured.
func (r *Registrar) become(key *signing.PrivateKey, tree wire.Value) error {
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		return fmt.Errorf("make own card: %w", err)
	}
	r.identity.Store(&Identity{Key: key, Card: card})
	return nil
}

// RotateKey gives the node a new signing key and the directories both proofs, so that peers follow (AM-60). The agent
// id stays. Until a directory has followed, the old key is needed for it; no private key stands in the database.
func (r *Registrar) RotateKey(ctx context.Context) ([]owner.Listing, error) {
	if r.cfg.SaveKey == nil {
		return nil, owner.Fault(http.StatusConflict, "this node cannot store a new key", "")
	}
	key, err := signing.GenerateEd25519()
	if err != nil {
		return nil, err
	}
	r.work.Lock()
	if err := r.rotate(ctx, key); err != nil {
		r.work.Unlock()
		return nil, err
	}
	r.work.Unlock()
	return r.each(ctx, "", func(p *place) {
		if r.due(p, time.Now()) {
			r.tend(ctx, p, renewing)
		}
	})
}

// rotate makes key the node's own. Each record is written before what depends on it: the id with its key chain and which
// key was the old one first, then the new key, then it is used.
func (r *Registrar) rotate(ctx context.Context, key *signing.PrivateKey) error {
	old := r.identity.Load()
	was := old.Key.Public().Fingerprint()
	chain := r.chainTo(key, time.Now())
	if err := r.keepID(ctx, nodeID{old.Card.ID, chain}); err != nil {
		return err
	}
	for _, p := range r.places {
		r.mu.Lock()
		s := p.state
		r.mu.Unlock()
		if s.AgentID != "" && s.PreviousKey == "" {
			s.PreviousKey = was
		}
		if err := r.put(ctx, p, s, time.Time{}); err != nil {
			return fmt.Errorf("note the old key: %w", err)
		}
	}
	card := withKeyChain(old.Card.Tree.With("public_key", wire.Text(key.PublicText())), chain)
	if err := r.cfg.SaveKey(key, card); err != nil {
		return fmt.Errorf("store the new key: %w", err)
	}
	r.retired[was] = old.Key
	r.rotated.Store(time.Now().Unix())
	return r.become(key, card)
}

// previousKey is the key that a directory still lists; nil where it is the current one, for then the rotation did not
// happen, and where it is lost: then peers ask their owners, as after any replaced key (AM-60). The caller holds work.
func (r *Registrar) previousKey(fingerprint string, current *signing.PrivateKey) *signing.PrivateKey {
	if fingerprint == "" || fingerprint == current.Public().Fingerprint() {
		return nil
	}
	if key := r.retired[fingerprint]; key != nil || r.cfg.RetiredKey == nil {
		return key
	}
	key, err := r.cfg.RetiredKey(fingerprint)
	if err == nil && key.Public().Fingerprint() != fingerprint {
		err = errors.New("it is another key")
	}
	if err != nil {
		r.cfg.Logger.Warn("the key before the rotation is lost: peers will ask their owners", "fingerprint", fingerprint, "err", err)
		return nil
	}
	r.retired[fingerprint] = key
	return key
}

// JustRotated reports whether peers may still have the card with the old key: they keep one for at most 10 minutes
// (AM-45), and ask again for a bad signature at most once a minute (AM-11).
func (r *Registrar) JustRotated() bool {
	const known = 12 * time.Minute
	return time.Since(time.Unix(r.rotated.Load(), 0)) < known
}
