package registration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// nodeID is the stored form of an id that differs from that of the configured card: a directory assigned it, or the
// node kept it when it rotated the key from which the id is derived.
type nodeID struct {
	AgentID  wire.AgentID `json:"agent_id"`
	KeyChain string       `json:"key_chain,omitempty"` // proofs that lead from the key in the id to the node's key; see [Registrar.chainAtStart]
}

// adopt stores an id that a directory assigned and makes it the node's id, before anything is signed with it.
func (r *Registrar) adopt(ctx context.Context, id wire.AgentID) error {
	r.identityMu.Lock()
	defer r.identityMu.Unlock()
	if err := r.storeRecord(context.WithoutCancel(ctx), recordNodeID, nodeID{AgentID: id}, store.Any); err != nil {
		return err
	}
	return r.setID(nodeID{AgentID: id})
}

// setID puts id on the card, with the key chain that leads from id to the node's key. An endpoint that is the mailbox
// of the old id changes too (AM-66).
func (r *Registrar) setID(id nodeID) error {
	old := r.identity.Load()
	tree := old.Card.Tree.With("agent_id", wire.Text(string(id.AgentID)))
	if base, ok := strings.CutSuffix(old.Card.Endpoint, "/mailbox/"+string(old.Card.ID)); ok {
		tree = tree.With("endpoint", wire.Text(base+"/mailbox/"+string(id.AgentID)))
	}
	if err := r.setIdentity(old.Key, tree); err != nil {
		return err
	}
	card := r.identity.Load().Card.Tree // chainAtStart needs the new id in r.identity
	return r.setIdentity(old.Key, withKeyChain(card, r.chainAtStart(id.KeyChain, time.Now())))
}

// setIdentity makes key and tree the node's key and card. It does not check the endpoint again, because the configured
// card has passed all checks.
func (r *Registrar) setIdentity(key *signing.PrivateKey, tree wire.Value) error {
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		return fmt.Errorf("make own card: %w", err)
	}
	r.identity.Store(&Identity{Key: key, Card: card})
	return nil
}

// SetMetadata replaces the metadata of the card with the result of change, and sends a changed card to the directories.
func (r *Registrar) SetMetadata(change func(card wire.Card) (metadata wire.Value, err error)) error {
	r.identityMu.Lock()
	defer r.identityMu.Unlock()
	old := r.identity.Load()
	metadata, err := change(old.Card)
	if err != nil {
		return err
	}
	tree := old.Card.Tree.With("metadata", metadata)
	if cardDigest(tree) == cardDigest(old.Card.Tree) {
		return nil
	}
	if err := r.setIdentity(old.Key, tree); err != nil {
		return err
	}
	r.newCard.Store(true)
	waiting.Wake(r.wakeup)
	return nil
}

// RotateKey gives the node a new signing key; the agent id stays the same. It sends each directory proofs by both keys,
// so that peers accept the new one (AM-60). A directory that learns of the new key only after a restart needs a proof
// by the old key, which [Config.RetiredKey] returns.
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
	return r.each(ctx, "", func(p *registration) {
		if r.isDue(p, time.Now()) {
			r.update(ctx, p, renewIfDue) // the card has changed
		}
	})
}

// rotate makes key the node's key. It stores each record before anything depends on it: first the id with its key
// chain, then the new key. Only then does it use the new key. It begins by
// reading the stored key, because another process may have rotated the key meanwhile. If another process begins a
// rotation before the key chain is stored, rotate refuses.
func (r *Registrar) rotate(ctx context.Context, key *signing.PrivateKey) error {
	var stored nodeID
	rev, _, err := store.ReadRecord(ctx, r.cfg.Store.Records(), Namespace, recordNodeID, &stored, time.Now())
	if err == nil {
		err = r.takeIdentity(ctx, time.Now())
	}
	if err != nil {
		return err
	}
	old := r.identity.Load()
	oldFingerprint := old.Key.Public().Fingerprint()
	chain := r.chainTo(key, time.Now())
	next := nodeID{old.Card.ID, chain}
	if err := r.storeRecord(context.WithoutCancel(ctx), recordNodeID, next, rev); errors.Is(err, store.ErrConflict) {
		return owner.Fault(http.StatusConflict, "another process changes the signing key at this moment", "see agentmesh keys show, and rotate again if you want to")
	} else if err != nil {
		return err
	}
	card := withKeyChain(old.Card.Tree.With("public_key", wire.Text(key.PublicText())), chain)
	r.identityMu.Lock()
	defer r.identityMu.Unlock()
	if err := r.cfg.SaveKey(key, card); err != nil {
		r.rereadLater() // the outcome is unknown, or another process stored a key
		return fmt.Errorf("store the new key: %w", err)
	}
	r.retired[oldFingerprint] = old.Key
	r.rotated.Store(time.Now().Unix())
	for _, p := range r.registrations {
		r.setNext(p, time.Time{}) // the directories list the old key
	}
	if err := r.setIdentity(key, card); err != nil {
		return err
	}
	// Another process may have stored the chain of a rotation that SaveKey then refused.
	err = r.storeRecord(context.WithoutCancel(ctx), recordNodeID, next, store.Any)
	if err == nil {
		err = r.storeRecord(ctx, recordRotated, struct{}{}, store.Any)
	}
	if err != nil {
		r.cfg.Logger.Error("other processes not told of the new key; they read it at their next start", "err", err) // they read the new key at their next start
	}
	return nil
}

// takeIdentity makes the stored id and key those of this process.
func (r *Registrar) takeIdentity(ctx context.Context, now time.Time) error {
	r.identityMu.Lock()
	defer r.identityMu.Unlock()
	old := r.identity.Load()
	id := nodeID{AgentID: old.Card.ID}
	if err := r.loadRecord(ctx, recordNodeID, &id, now); err != nil {
		return err
	}
	if r.cfg.CurrentKey != nil {
		key, err := r.cfg.CurrentKey()
		if err != nil {
			return fmt.Errorf("read the signing key: %w", err)
		}
		if key.Public().Fingerprint() != old.Key.Public().Fingerprint() {
			r.rotated.Store(now.Unix())
			if err := r.setIdentity(key, old.Card.Tree.With("public_key", wire.Text(key.PublicText()))); err != nil {
				return err
			}
		}
	}
	return r.setID(id)
}

// previousKey returns the key with this fingerprint, which a directory still lists. It returns nil if that is the
// current key, because then the rotation did not happen. It also returns nil if the key is lost: then peers ask their
// owners, as after any replacement (AM-60). The caller must hold r.work.
func (r *Registrar) previousKey(fingerprint string, current *signing.PrivateKey) *signing.PrivateKey {
	if fingerprint == "" || fingerprint == current.Public().Fingerprint() {
		return nil
	}
	if key := r.retired[fingerprint]; key != nil || r.cfg.RetiredKey == nil {
		return key
	}
	key, err := r.cfg.RetiredKey(fingerprint)
	if err == nil && key.Public().Fingerprint() != fingerprint {
		err = errors.New("the stored key has another fingerprint")
	}
	if err != nil {
		r.cfg.Logger.Warn("the key before the rotation is lost: peers will ask their owners", "fingerprint", fingerprint, "err", err)
		return nil
	}
	r.retired[fingerprint] = key
	return key
}

// IsRotationRecent reports whether peers may still have the card with the old key: a directory has not followed the
// rotation yet, or peers have the card from before. They keep a card for at most 10 minutes (AM-45), and after a bad
// signature they fetch it again at most once a minute (AM-11).
func (r *Registrar) IsRotationRecent() bool {
	const maxStale = 12 * time.Minute
	now, current := time.Now(), r.identity.Load().Key.Public().Fingerprint()
	if now.Sub(time.Unix(r.rotated.Load(), 0)) < maxStale {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.registrations, func(p *registration) bool {
		s := p.state
		return s.AgentID != "" && s.ListedKey != "" && s.ListedKey != current || now.Sub(s.Followed) < maxStale
	})
}
