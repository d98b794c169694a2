package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Sealing decides which of our messages are sealed to their recipient (AM-85). Once either side has sealed a message in
// a conversation, ours are sealed too, unless the caller chooses Unsealed, which SealRequire forbids.
type Sealing string

const (
	SealOff     Sealing = "off"     // seal no message; the default
	SealPrefer  Sealing = "prefer"  // seal the messages whose recipient can open them
	SealRequire Sealing = "require" // seal every message that may be sealed at all (see sealRecipient), or do not send it
)

// ErrMustSeal means that the owner's rule requires a seal, and the caller wants none.
var ErrMustSeal = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "outgoing.seal is set to require: the message cannot leave unsealed"}

// ErrCannotSeal means that a message that must be sealed cannot be.
var ErrCannotSeal = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusUnprocessableEntity, Message: "the message cannot be sealed"}

// sealRecipient returns the age recipient to which a message of ours is sealed, or "" if it is sent unsealed. It may
// ask a directory, so no step of the store may be open. A close is never sealed.
func (n *Node) sealRecipient(ctx context.Context, out Outgoing, conv conversations.Conversation) (string, error) {
	rule := n.cfg.Outbound.Seal
	must := out.Seal == owner.Sealed || rule == SealRequire || conv.Sealed && out.Seal != owner.Unsealed
	switch {
	case out.isClose():
		return "", nil
	case out.Seal == owner.Unsealed && rule == SealRequire:
		return "", ErrMustSeal
	case !must && (rule != SealPrefer || out.Seal == owner.Unsealed):
		return "", nil
	case out.Address != "" || conv.Address != "":
		if must {
			return "", ErrCannotSeal.At("a peer of a foreign network has no key to seal to")
		}
		return "", nil
	case conv.PeerRecipient != "":
		return conv.PeerRecipient, nil // the peer named it under its own signature
	}
	recipient, err := n.cards.Recipient(ctx, out.To, must, time.Now())
	switch {
	case err == nil:
		return recipient, nil
	case !must:
		return "", nil // Send reports faults of the recipient
	case errors.Is(err, client.ErrNoRecipient):
		return "", ErrCannotSeal.At("the recipient's card names no age recipient").Because(err)
	case errors.Is(err, client.ErrUnproven):
		return "", ErrCannotSeal.At("no key proof of the recipient covers the age recipient on its card").Because(err)
	case errors.Is(err, client.ErrUnknownAgent):
		return "", ErrNoRecipient
	}
	if unproven, ok := errors.AsType[*client.UnprovenError](err); ok {
		return "", ErrCannotSeal.At(unproven.Error()).Because(err)
	}
	return "", wire.ErrUnavailable.Because(err)
}

// resolveSeal sets out.sealTo, and checks that the sealed payload fits into a message.
func (n *Node) resolveSeal(ctx context.Context, out *Outgoing, now time.Time) error {
	thread, err := n.book.Load(ctx, out.key(), now)
	if err != nil {
		return err
	}
	if out.sealTo, err = n.sealRecipient(ctx, *out, thread.Conversation()); err != nil || out.sealTo == "" {
		return err
	}
	return checkSealable(out.Payload)
}

// checkSealable returns an error if a sealed payload does not fit into a message. Sealing makes a payload larger by a
// third and a kibibyte.
func checkSealable(payload wire.Value) error {
	const limit = conversations.MaxPayload/4*3 - 1<<10
	if size := len(payload.JSON()); size > limit {
		return ErrCannotSeal.At(fmt.Sprintf("a payload to be sealed may have at most %d bytes", limit))
	}
	return nil
}

// signFor signs the message. If recipient is not empty, it first seals the payload to recipient.
func (n *Node) signFor(d wire.Draft, recipient string) (signedMessage, error) {
	if recipient == "" {
		return n.sign(d)
	}
	card := n.Card()
	meta, _ := card.Tree.Get("metadata")
	sealer := conversations.Sealer{Agent: card.ID, Recipient: meta.GetStr("age_recipient")}
	sealed, key, err := sealer.Seal(d.Payload, recipient)
	if err != nil {
		return signedMessage{}, fmt.Errorf("seal message: %w", err)
	}
	d.Payload = sealed
	s, err := n.sign(d)
	s.Key = key
	return s, err
}

// seal describes the seal of a received message. The zero value means that the message was not sealed.
type seal struct {
	sealed   bool
	key      []byte // opens this message
	answerTo string // the age recipient to which the sender wants answers sealed
}

// unseal opens a sealed payload between lines 12 and 13 of the receive table (docs/protocol.md), so that the later
// lines judge the content. Every failure gives the same error, and the owner gets a notice.
func (a *acceptance) unseal(ctx context.Context) error {
	if !conversations.IsSealed(a.in.Payload) {
		return nil
	}
	err := fmt.Errorf("%w: it came over a foreign network", conversations.ErrSealed)
	var o conversations.Unsealed
	if a.in.Native != nil {
		o, err = conversations.Unseal(a.n.cfg.Age, a.in.Payload, a.in.Peer)
	}
	if err != nil {
		change := a.n.notices.Change(a.n.notice(kindUnreadable, a.in.Peer, a.in.Name, a.key, a.now))
		if err := a.n.store.Records().Apply(ctx, []store.Change{change}, a.now); err != nil {
			return err
		}
		return wire.ErrSealed.Because(err)
	}
	a.in.Payload = o.Payload
	a.seal = seal{sealed: true, key: o.Key, answerTo: o.By.Recipient}
	return nil
}

const kindUnreadable = "unreadable" // the kind of notice about a message that could not be opened

// unsealReply opens a synchronous answer. If it cannot be opened, unsealReply returns it as it came, with a note.
func (n *Node) unsealReply(d bridge.Delivered) (reply wire.Message, s seal, note string) {
	reply = *d.Reply
	if !conversations.IsSealed(reply.Payload) {
		return reply, s, ""
	}
	s.sealed = true
	o, err := conversations.Unseal(n.cfg.Age, reply.Payload, reply.From)
	if err != nil {
		return reply, s, "the answer is sealed and cannot be opened"
	}
	s.key, s.answerTo, reply.Payload = o.Key, o.By.Recipient, o.Payload
	return reply, s, ""
}
