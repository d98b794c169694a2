package link

import (
	"context"
	"encoding/base64"
	"errors"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The values of policy.encrypt (AR-49). Empty is encryptKnown.
const (
	encryptAlways = "always"
	encryptKnown  = "when_known"
	encryptNever  = "never"
)

const (
	maxSealed     = 45 << 10 // of ciphertext (AR-48)
	maxOpened     = 256 << 10
	sealAlgorithm = "age"
)

// seal encrypts a frame for a peer if the policy says so (AR-47 to AR-49).
func (l *Link) seal(ctx context.Context, peer string, plain []byte) ([]byte, error) {
	policy := l.cfg.Link.Policy.Encrypt
	if policy == encryptNever {
		return plain, nil
	}
	p, err := l.peers.get(ctx, peer)
	if err != nil {
		return nil, err
	}
	if p.Recipient == "" {
		p.Recipient = l.peers.keepAnnounced(ctx, peer)
	}
	if p.Recipient == "" {
		if policy == encryptAlways {
			return nil, carryError{"the link sends encrypted messages only, and no key of this peer is known"}
		}
		return plain, nil
	}
	v, err := wire.ParseForeign(plain, frame.MaxDepth+1, frame.MaxValues)
	if err != nil {
		return nil, carryError{"the message is nested too deeply"}
	}
	sealed, err := signing.SealAge(p.Recipient, v.Without("to").JSON())
	if err != nil {
		return nil, carryError{"the peer's key cannot be used"}
	}
	if len(sealed) > maxSealed {
		return nil, carryError{"the message is too large to be encrypted for a relay"}
	}
	return frame.Request(peer, "encrypted", "", wire.Obj(
		wire.TextField("encrypted_data", base64.StdEncoding.EncodeToString(sealed)), wire.TextField("algorithm", sealAlgorithm),
		wire.TextField("recipient_key", p.Recipient),
	)).JSON(), nil
}

// decrypt opens a message that was encrypted to us. It proves nothing about its sender (AR-48). The error is for the
// owner alone: no answer tells a stranger why.
func (l *Link) decrypt(h *heard) (wire.Value, error) {
	none := wire.Value{}
	identity := l.cfg.Identity
	if identity == "" {
		return none, errors.New("the node has no age key")
	}
	own, err := signing.AgeRecipient(identity)
	if err != nil {
		return none, err
	}
	if h.payload.GetStr("algorithm") != sealAlgorithm {
		return none, errors.New("another algorithm than age")
	}
	if h.payload.GetStr("recipient_key") != own {
		return none, errors.New("it is for another key")
	}
	data := h.payload.GetStr("encrypted_data")
	if base64.StdEncoding.DecodedLen(len(data)) > maxSealed+3 {
		return none, errors.New("it is too large")
	}
	sealed, err := base64.StdEncoding.Strict().DecodeString(data)
	if err != nil || len(sealed) > maxSealed {
		return none, errors.New("it is not base64, or too large")
	}
	plain, err := signing.OpenAge(identity, sealed, maxOpened)
	if err != nil {
		return none, err
	}
	inner, err := wire.ParseForeign(plain, frame.MaxDepth, maxOpened)
	if err != nil || inner.Kind() != wire.Object {
		return none, errors.New("what was encrypted is no JSON object")
	}
	if _, ok := inner.Get("payload"); !ok {
		return none, errors.New("what was encrypted has no payload")
	}
	return inner, nil
}
