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

// ErrNoRecipient: the agent names no age recipient that could be believed.
var ErrNoRecipient = errors.New("the agent's card names no age recipient")

// ErrUnproven: the card names one, and nothing but the directory's word says that it is the agent's. Who keeps a
// directory can put a recipient of its own on a card and read what is sealed to it.
var ErrUnproven = errors.New("the age recipient on the agent's card is not proven by its signing key")

// Recipient returns what a payload for an agent is sealed to (AM-85): the age recipient of its card. With proven it is
// one that the agent's pinned key vouches for, by the key proof over the card that the directory retains (AM-62), or
// one that the owner gave.
func (c *Cards) Recipient(ctx context.Context, id wire.AgentID, proven bool, now time.Time) (string, error) {
	peer, err := c.Find(ctx, id, now)
	if err != nil {
		return "", err
	}
	card := peer.Card.Tree
	if proven && peer.Directory != "" {
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

// provenCard fetches the card of a peer with its key proof, and checks that.
func (c *Cards) provenCard(ctx context.Context, peer Peer, now time.Time) (wire.Value, error) {
	i := slices.IndexFunc(c.cfg.Directories, func(d *Directory) bool { return d.Base == peer.Directory })
	if i < 0 {
		return wire.Value{}, ErrUnproven
	}
	d := c.cfg.Directories[i]
	rec, err := d.Record(ctx, peer.Card.ID)
	if errors.Is(err, ErrUnknownAgent) {
		return wire.Value{}, ErrUnproven // or the directory keeps no proofs
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
	for _, base := range spellings(d.Base) {
		for _, to := range [][2]string{{http.MethodPut, "/agents/" + string(peer.Card.ID)}, {http.MethodPost, "/agents"}} {
			text := wire.KeyProofText(to[0], d.path+to[1], base, proof.Stamp, digest)
			if peer.Key.Verify(text, proof.Signature, window, now) == nil {
				return rec.Card, nil
			}
		}
	}
	return wire.Value{}, ErrUnproven
}

// spellings are the base URLs that a proof may name: a directory on this machine goes by several names (AM-62).
func spellings(base string) []string {
	all := []string{base}
	u, err := url.Parse(base)
	if err != nil || !isLoopbackURL(u) {
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
