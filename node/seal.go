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

// Sealing says which messages of ours are sealed to their recipient (AM-85). In a conversation in which somebody
// sealed, ours are sealed whatever it says.
type Sealing string

const (
	SealOff     Sealing = "off"     // none; the default
	SealPrefer  Sealing = "prefer"  // those whose recipient can open them
	SealRequire Sealing = "require" // all: what cannot be sealed does not leave
)

// SealChoice is what somebody on our side wants for one message; empty leaves it to the rules.
type SealChoice = owner.SealChoice

const (
	Sealed   = owner.Sealed
	Unsealed = owner.Unsealed
)

// ErrMustSeal: the owner's rule seals every message.
var ErrMustSeal = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "outgoing.seal is require: a message cannot leave open"}

// ErrCannotSeal: a message that must be sealed cannot be.
var ErrCannotSeal = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusUnprocessableEntity, Message: "the message cannot be sealed"}

// sealTo returns the age recipient that a message of ours is sealed to, "" where it leaves open. It may ask a directory,
// so no step may be open. A close and what the protocol itself says are never sealed.
func (n *Node) sealTo(ctx context.Context, out Outgoing, conv conversations.Conversation) (string, error) {
	rule := n.cfg.Outbound.Seal
	must := out.Seal == Sealed || rule == SealRequire || conv.Sealed && out.Seal != Unsealed
	switch {
	case out.closes():
		return "", nil
	case out.Seal == Unsealed && rule == SealRequire:
		return "", ErrMustSeal
	case !must && (rule != SealPrefer || out.Seal == Unsealed):
		return "", nil
	case out.Address != "" || conv.Address != "":
		if must {
			return "", ErrCannotSeal.At("a peer of a foreign network has no key to seal to")
		}
		return "", nil
	case conv.PeerRecipient != "":
		return conv.PeerRecipient, nil // it said so itself, under its signature
	}
	recipient, err := n.cards.Recipient(ctx, out.To, must, time.Now())
	switch {
	case err == nil:
		return recipient, nil
	case !must:
		return "", nil // Send says what is wrong with the recipient, if anything is
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

// sealing sets what out is sealed to, and checks that it still fits into a message.
func (n *Node) sealing(ctx context.Context, out *Outgoing, now time.Time) error {
	thread, err := n.book.Load(ctx, out.key(), now)
	if err != nil {
		return err
	}
	if out.sealTo, err = n.sealTo(ctx, *out, thread.Conversation()); err != nil || out.sealTo == "" {
		return err
	}
	return sealable(out.Payload)
}

// sealable says whether a payload fits into a message when it is sealed: base64 takes a third more, and the seal itself
// less than a kibibyte.
func sealable(payload wire.Value) error {
	const most = conversations.MaxPayload/4*3 - 1<<10
	if size := len(payload.JSON()); size > most {
		return ErrCannotSeal.At(fmt.Sprintf("a payload that is sealed must be at most %d bytes", most))
	}
	return nil
}

// signFor is [Node.sign] for a message that is sealed to recipient; "" seals nothing.
func (n *Node) signFor(d wire.Draft, recipient string) (signed, error) {
	if recipient == "" {
		return n.sign(d)
	}
	card := n.Card()
	meta, _ := card.Tree.Get("metadata")
	by := conversations.Sealer{Agent: card.ID, Recipient: meta.GetStr("age_recipient")}
	sealed, key, err := by.Seal(d.Payload, recipient)
	if err != nil {
		return signed{}, fmt.Errorf("seal message: %w", err)
	}
	d.Payload = sealed
	s, err := n.sign(d)
	s.Key = key
	return s, err
}

// seal is what is known of the seal of a message that came in; the zero value is that of an open one.
type seal struct {
	sealed bool
	key    []byte // opens this message
	back   string // what its sender wants answers sealed to
}

// unseal opens a sealed payload, after line 12 and before line 13: the lines after it judge what is inside. A message
// that cannot be opened is refused, whatever the reason, and its owner is told.
func (a *acceptance) unseal(ctx context.Context) error {
	defer func() {
		a.takes = a.unit.Conversation().Accept.IsTakenBy(a.in.Payload)
	}()
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
	a.seal = seal{sealed: true, key: o.Key, back: o.By.Recipient}
	return a.judge(ctx)
}

const kindUnreadable = "unreadable" // the notice of a message that could not be opened

// unsealReply opens the answer to a message of ours. One that cannot be opened is kept as it came, with a note.
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
	s.key, s.back, reply.Payload = o.Key, o.By.Recipient, o.Payload
	return reply, s, ""
}
