package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// ErrNoRecipient means that the agent's card has no usable recipient, a public key of the encryption tool age.
var ErrNoRecipient = errors.New("the agent's card names no age recipient")

// ErrUnproven means that only the directory vouches for the age recipient on the card. The directory's operator could
// name another recipient, and read what is sealed to it.
var ErrUnproven = errors.New("the age recipient on the agent's card is not proven by its signing key")

// Recipient returns the age recipient on an agent's card, to which payloads are sealed (AM-85). If mustBeProven is
// set, the card must come from our owner, or the directory must have a key proof of the card by the agent's pinned
// key (AM-62).
func (c *Cards) Recipient(ctx context.Context, id wire.AgentID, mustBeProven bool, now time.Time) (string, error) {
	peer, err := c.Find(ctx, id, now)
	if err != nil {
		return "", err
	}
	card := peer.Card.Tree
	if mustBeProven && peer.Directory != "" {
		if card, err = c.provenCard(ctx, peer, now); err != nil {
			return "", err
		}
	}
	meta, _ := card.Get("metadata")
	recipient := meta.GetStr("age_recipient")
	if !signing.ValidAgeRecipient(recipient) {
		return "", ErrNoRecipient
	}
	return recipient, nil
}

// provenCard returns the card in the directory's record of peer, if a key proof by peer's key covers the card.
func (c *Cards) provenCard(ctx context.Context, peer Peer, now time.Time) (wire.Value, error) {
	i := slices.IndexFunc(c.cfg.Directories, func(d *Directory) bool { return d.Base == peer.Directory })
	if i < 0 {
		return wire.Value{}, ErrUnproven
	}
	d := c.cfg.Directories[i]
	rec, err := d.Record(ctx, peer.Card.ID)
	if errors.Is(err, ErrUnknownAgent) {
		return wire.Value{}, ErrUnproven // the directory may store no proofs
	}
	if err != nil {
		return wire.Value{}, err
	}
	proof, ok := wire.ParseKeyProof(rec.KeyProof)
	if !ok {
		return wire.Value{}, ErrUnproven
	}
	digest := signing.Digest(rec.Card)
	window := signing.Window{From: proof.Time.Add(-proofSkew), To: proof.Time.Add(proofSkew)}
	for _, base := range proofBases(d.Base) {
		for _, target := range [][2]string{{http.MethodPut, "/agents/" + string(peer.Card.ID)}, {http.MethodPost, "/agents"}} {
			text := wire.KeyProofText(target[0], d.path+target[1], base, proof.Stamp, digest)
			if peer.Key.Verify(text, proof.Signature, window, now) == nil {
				return rec.Card, nil
			}
		}
	}
	return wire.Value{}, ErrUnproven
}

// proofBases returns the base URLs that a proof may name. A directory on this machine has several names (AM-62).
func proofBases(base string) []string {
	all := []string{base}
	u, err := url.Parse(base)
	if err != nil || !IsLoopbackURL(u) {
		return all
	}
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
		other := *u
		other.Host = host
		if port := u.Port(); port != "" {
			other.Host += ":" + port
		}
		if text := other.String(); text != base {
			all = append(all, text)
		}
	}
	return all
}
