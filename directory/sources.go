package directory

import (
	"context"
	"encoding/hex"
	"errors"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/wire"
)

// CredentialOf returns a name for the credential of the card of id: its hash. The name is "" if the card is unknown, or
// if it was mirrored from another directory.
func (r *Registry) CredentialOf(ctx context.Context, id wire.AgentID) (string, error) {
	card, err := listing.Get(ctx, r.cards, id, wire.Now())
	switch {
	case errors.Is(err, wire.ErrNoAgent):
		return "", nil
	case err != nil:
		return "", err
	case card.Owner == [32]byte{}:
		return "", nil
	}
	return hex.EncodeToString(card.Owner[:]), nil
}
