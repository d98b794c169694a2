package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const maxRotations = 64 // keys in a history

// proofSkew bounds the difference between the time of a proof and the time of its request (AM-62).
const proofSkew = 5 * time.Minute

// checkRotation returns nil if the pinned key leads to the key of peer: through the key chain on its card (AM-2), or
// through proofs that the directory retained (AM-60). The proof of a rotation is the old key's signature over the
// digest of a card with the new key. A text that both keys have signed is not enough: the old key signs a text at every
// renewal, and a directory could sign that text with its own key. So each step needs the signed card from the history.
// Only the last step may use the current card instead.
func (c *Cards) checkRotation(ctx context.Context, d *Directory, pin storedPin, peer Peer, now time.Time) error {
	if text := peer.Card.KeyChain(); text != "" {
		chain, err := signing.ParseKeyChain(peer.Card.ID, text, now)
		if err == nil && chain.Vouches(pin.Fingerprint, peer.Key) {
			return nil
		}
	}
	history, err := d.Keys(ctx, peer.Card.ID)
	if err != nil {
		return err
	}
	if len(history.Keys) > maxRotations {
		return errors.New("the key history is too long")
	}
	key, err := c.cfg.KeyCache.Parse(pin.PublicKey)
	if err != nil {
		return fmt.Errorf("pinned key: %w", err)
	}
	pinned := -1 // index of the pinned key
	for i, k := range history.Keys {
		if parsed, err := c.cfg.KeyCache.Parse(k.PublicKey); err == nil && parsed.Fingerprint() == pin.Fingerprint {
			pinned = i
		}
	}
	if pinned < 0 {
		return errors.New("the key history does not contain the pinned key")
	}
	steps := history.Keys[pinned+1:]
	for i, step := range steps {
		card := step.Card
		if card.IsNull() && i == len(steps)-1 {
			card = peer.Card.Tree
		}
		if key, err = c.checkStep(d, peer.Card.ID, key, step, card, now); err != nil {
			return fmt.Errorf("rotation %d: %w", i+1, err)
		}
	}
	if key.Fingerprint() != peer.Key.Fingerprint() {
		return errors.New("the key history does not lead to the card's key")
	}
	return nil
}

// checkStep checks the proofs of one rotation from previousKey, and returns the new key, which is on card.
func (c *Cards) checkStep(d *Directory, id wire.AgentID, previousKey *signing.PublicKey, step wire.KeyChange, card wire.Value, now time.Time) (*signing.PublicKey, error) {
	if card.GetStr("agent_id") != string(id) {
		return nil, errors.New("the signed card is missing, or is the card of another agent")
	}
	key, err := c.cfg.KeyCache.Parse(card.GetStr("public_key"))
	if err != nil {
		return nil, err
	}
	proof, ok := wire.ParseKeyProof(step.Proof)
	previous, okPrevious := wire.ParseKeyProof(step.PreviousProof)
	if !ok || !okPrevious || proof.Stamp != previous.Stamp {
		return nil, errors.New("one of the two proofs is missing, or their times differ")
	}
	if proof.Time.After(now.Add(proofSkew)) {
		return nil, errors.New("the proofs are from the future")
	}
	text := proofText(d, id, proof.Stamp, signing.Digest(card), step.ProofText)
	if text == nil {
		return nil, errors.New("the proofs are for another text")
	}
	window := signing.Window{From: proof.Time.Add(-proofSkew), To: proof.Time.Add(proofSkew)}
	if err := previousKey.Verify(text, previous.Signature, window, now); err != nil {
		return nil, fmt.Errorf("proof by the previous key: %w", err)
	}
	if err := key.Verify(text, proof.Signature, window, now); err != nil {
		return nil, fmt.Errorf("proof by the new key: %w", err)
	}
	return key, nil
}

// proofText returns the text that both keys must have signed. claim is that text according to the directory, or
// "". The text must name our base URL of the directory or, for a directory on this machine, another loopback name
// (AM-62). If claim is another text, proofText returns nil.
func proofText(d *Directory, id wire.AgentID, stamp string, digest [32]byte, claim string) []byte {
	for _, base := range proofBases(d.Base) {
		text := wire.KeyProofText(http.MethodPut, d.path+"/agents/"+string(id), base, stamp, digest)
		if claim == "" || claim == string(text) {
			return text
		}
	}
	return nil
}

// followRotation pins the new key of an agent, for which the old key vouches. If the owner gave the card, it replaces
// only the key on that card.
func (c *Cards) followRotation(ctx context.Context, pin storedPin, e, fromOwner *entry, now time.Time) (*entry, error) {
	next := newPin(e.peer)
	next.rev, next.FromOwner, next.Pinned = pin.rev, pin.FromOwner, now
	next.Proven = next.Proven || !pin.IsUnproven()
	changes := []store.Change{next.change(now)}
	if fromOwner != nil {
		card := fromOwner.peer.Card.Tree.With("public_key", wire.Text(e.peer.Card.PublicKey))
		var err error
		if e, err = c.ownerEntry(card, now); err != nil {
			return nil, err
		}
		changes = append(changes, store.Change{Record: store.Record{NS: nsPeers, Key: string(pin.Agent), Body: card.JSON()}, IfRev: store.Any})
	}
	if err := c.cfg.Records.Apply(ctx, changes, now); err != nil {
		return nil, fmt.Errorf("follow the rotation of %s: %w", pin.Agent, err)
	}
	e.peer.Pinned, e.peer.ownerPin, e.peer.keyPinned = now, pin.FromOwner, true
	c.cfg.Logger.InfoContext(ctx, "accepted a key rotation", "agent", pin.Agent, "old", pin.Fingerprint, "new", next.Fingerprint)
	return e, nil
}
