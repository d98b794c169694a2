package agentrelay

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// The values of policy.encrypt (AR-49). Empty is encryptKnown.
const (
	encryptAlways = "always"
	encryptKnown  = "when_known"
	encryptNever  = "never"
)

const (
	nsPeers       = "agentrelay/peers"
	maxPeersKept  = 1000
	maxPinned     = 500      // of them by what peers said themselves: the owner finds room
	maxSealed     = 45 << 10 // of ciphertext (AR-48)
	maxOpened     = 256 << 10
	sealAlgorithm = "age"
)

// Peer is what the owner decided, or a peer said first, about an agent behind a link.
type Peer struct {
	Peer      string       `json:"peer"`
	Agent     wire.AgentID `json:"agent_id,omitempty"`      // whom the tunnel reaches there; the owner says so
	Recipient string       `json:"age_recipient,omitempty"` // what is encrypted to
	ByOwner   bool         `json:"by_owner,omitempty"`      // the key comes from the owner, not from a discovery
	Pending   string       `json:"pending_recipient,omitempty"`

	rev store.Rev // that was read; store.Absent where there is none yet
}

func (l *link) peerKey(peer string) string { return l.cfg.Name + "/" + peer }

func (l *link) peer(ctx context.Context, id string) (Peer, error) {
	p := Peer{Peer: id}
	rec, err := l.b.cfg.Store.Records().Get(ctx, nsPeers, l.peerKey(id), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return p, nil
	}
	if err == nil {
		p.rev, err = rec.Rev, json.Unmarshal(rec.Body, &p)
	}
	return p, err
}

const keepTries = 16

// changePeer reads a peer, changes it and keeps it; where somebody else did so meanwhile, it begins anew. change says
// whether there is anything to keep.
func (l *link) changePeer(ctx context.Context, id string, change func(*Peer) bool) (p Peer, err error) {
	for range keepTries {
		if p, err = l.peer(ctx, id); err != nil || !change(&p) {
			return p, err
		}
		if err = l.keepPeer(ctx, p); !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	return p, err
}

// keepPeer writes a peer that nobody changed since it was read.
func (l *link) keepPeer(ctx context.Context, p Peer) error {
	room := maxPeersKept
	if p.Agent == "" && !p.ByOwner {
		room = maxPinned
	}
	return l.b.cfg.Store.Records().Apply(ctx, []store.Change{{Record: l.peerRecord(p), IfRev: p.rev, Max: room}}, time.Now())
}

// pin takes the key of a peer's first discovery. Another one later is shown to the owner and not used, and none after
// that until the owner has decided (AR-49): a peer that changes its mind with every frame costs nothing.
func (l *link) pin(id, recipient string) {
	if len(recipient) > 256 || !signing.ValidAgeRecipient(recipient) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	another := false
	_, err := l.changePeer(ctx, id, func(p *Peer) bool {
		another = false
		switch {
		case p.Recipient == recipient || p.Pending != "":
			return false
		case p.Recipient == "":
			p.Recipient = recipient
		default:
			p.Pending, another = recipient, true
		}
		return true
	})
	if another {
		l.log.Warn("a peer says that it has another key; agentmesh agentrelay peer takes it", "peer", id)
	}
	switch {
	case errors.Is(err, store.ErrQuota):
		l.announce(id, recipient)
	case err != nil:
		l.log.Info("the key of a peer was not kept", "peer", id, "err", err)
	}
}

// seal encrypts a frame for a peer where the policy wants it (AR-47 to AR-49).
func (l *link) seal(ctx context.Context, peer string, frame []byte) ([]byte, error) {
	policy := l.cfg.Policy.Encrypt
	if policy == encryptNever {
		return frame, nil
	}
	p, err := l.peer(ctx, peer)
	if err != nil {
		return nil, err
	}
	if p.Recipient == "" {
		p.Recipient = l.keepAnnounced(ctx, peer)
	}
	if p.Recipient == "" {
		if policy == encryptAlways {
			return nil, carryError{"the link sends encrypted messages only, and no key of this peer is known"}
		}
		return frame, nil
	}
	v, err := wire.ParseForeign(frame, maxDepth+1, maxValues)
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
	return wire.Obj(wire.Field("to", wire.Texts([]string{peer})), text("type", "encrypted"), wire.Field("payload", wire.Obj(
		text("encrypted_data", base64.StdEncoding.EncodeToString(sealed)), text("algorithm", sealAlgorithm), text("recipient_key", p.Recipient),
	))).JSON(), nil
}

// decrypt opens a message that was encrypted to us. It proves nothing about its sender (AR-48). The error is for the
// owner alone: no answer tells a stranger why.
func (l *link) decrypt(h *heard) (wire.Value, error) {
	none := wire.Value{}
	identity := l.b.cfg.Identity
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
	inner, err := wire.ParseForeign(plain, maxDepth, maxOpened)
	if err != nil || inner.Kind() != wire.Object {
		return none, errors.New("what was encrypted is no JSON object")
	}
	if _, ok := inner.Get("payload"); !ok {
		return none, errors.New("what was encrypted has no payload")
	}
	return inner, nil
}
