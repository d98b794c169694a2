package link

import (
	"context"
	"encoding/base64"
	"errors"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// policy.encrypt has one of these values (AR-49). An empty value means encryptKnown.
const (
	encryptAlways = "always"
	encryptKnown  = "when_known"
	encryptNever  = "never"
)

const (
	maxSealed     = 45 << 10  // bytes of ciphertext (AR-48)
	maxOpened     = 256 << 10 // bytes of plaintext
	sealAlgorithm = "age"
)

// seal encrypts a frame for a peer if the policy asks for it (AR-47 to AR-49).
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
		p.Recipient = l.peers.storeAnnouncedKey(ctx, peer)
	}
	if p.Recipient == "" {
		if policy == encryptAlways {
			return nil, undeliverableError{"the link sends only encrypted messages, and it knows no key of this peer; set one with agentmesh agentrelay peer"}
		}
		return plain, nil
	}
	v, err := wire.ParseForeign(plain, frame.MaxDepth, frame.MaxValues)
	if err != nil {
		return nil, undeliverableError{"the message is nested too deeply to be encrypted"}
	}
	sealed, err := signing.SealAge(p.Recipient, v.Without("to").JSON())
	if err != nil {
		return nil, undeliverableError{"the peer's key cannot be used"}
	}
	if len(sealed) > maxSealed {
		return nil, undeliverableError{"the message is too large to be encrypted for a relay"}
	}
	return frame.Request(peer, "encrypted", "", wire.Obj(
		wire.TextField("encrypted_data", base64.StdEncoding.EncodeToString(sealed)), wire.TextField("algorithm", sealAlgorithm),
		wire.TextField("recipient_key", p.Recipient),
	)).JSON(), nil
}

// decrypt opens a message that was encrypted to the node. Success proves nothing about its sender (AR-48). The error is
// for the owner only: no answer tells a stranger why decryption failed.
func (l *Link) decrypt(h *incoming) (wire.Value, error) {
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
		return none, errors.New("its algorithm is not age")
	}
	if h.payload.GetStr("recipient_key") != own {
		return none, errors.New("it is encrypted to another key")
	}
	data := h.payload.GetStr("encrypted_data")
	if base64.StdEncoding.DecodedLen(len(data)) > maxSealed+3 { // DecodedLen counts the padding, too
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
	inner, err := wire.ParseForeign(plain, frame.MaxDepth, maxOpened) // no more values than bytes
	if err != nil || inner.Kind() != wire.Object {
		return none, errors.New("its content is not a JSON object")
	}
	if _, ok := inner.Get("payload"); !ok {
		return none, errors.New("its content has no payload")
	}
	return inner, nil
}
