package directory

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Submission is what a client sends with POST or PUT.
type Submission struct {
	// Body reads the card. It is called only after the checks that AM-51 puts before the body; nil is an empty body.
	Body func() ([]byte, error)
	// Bearer is the credential.
	Bearer string
	// Invite is an invite code for a client that chose its own credential. If it is "", Bearer may be the code.
	Invite string
	// Proof and PreviousProof are the headers of AM-62 and AM-60; "" if the request has none.
	Proof, PreviousProof string
	// Client is the address that is charged for the request; it is invalid for a caller in this process.
	Client netip.Addr
	// Host is the host in the request.
	Host string
}

func (s Submission) read() ([]byte, error) {
	if s.Body == nil {
		return nil, nil
	}
	return s.Body()
}

// candidate is a card that passed [Registry.checkCard].
type candidate struct {
	card      wire.Card
	key       *signing.PublicKey
	submitted wire.Value // what a key proof covers
	served    []byte
	host      string
	mailbox   bool // the endpoint is the agent's mailbox here (AM-66)
}

// parseCard parses a card according to AM-4, AM-5 and AM-12.
func (r *Registry) parseCard(body []byte) (wire.Card, error) {
	if len(body) > wire.MaxCard {
		return wire.Card{}, wire.ErrTooLarge
	}
	tree, err := wire.ParseObject(body)
	if syntax, ok := errors.AsType[*wire.SyntaxError](err); ok {
		return wire.Card{}, wire.ErrSyntax.At(syntax.Reason).Because(err)
	}
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: r.allowHTTP})
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return wire.Card{}, wire.ErrCard.WithField(field)
	}
	return card, err
}

// checkCard parses a card, checks its id and its key (AM-8), and returns it as a candidate. id is "" for any id. proven
// means that the request has a key proof.
func (r *Registry) checkCard(body []byte, id wire.AgentID, proven bool, now time.Time) (candidate, error) {
	card, err := r.parseCard(body)
	if err != nil {
		return candidate{}, err
	}
	if id != "" && card.ID != id {
		return candidate{}, wire.ErrCardID
	}
	key, err := r.usableKey(card.PublicKey, now)
	if err != nil {
		return candidate{}, err
	}
	if proven && card.PrivateLists() { // AM-6: the directory drops private lists, which would break the proof
		return candidate{}, wire.ErrCard.WithField(&wire.FieldError{Field: "access_control", Reason: "must hold the mode alone when the key is proven"})
	}
	endpoint, err := url.Parse(card.Endpoint)
	if err != nil {
		return candidate{}, wire.ErrCard.Because(err) // ParseCard has parsed it before
	}
	return candidate{
		card:      card,
		key:       key,
		submitted: card.Tree,
		served:    card.WithoutPrivateLists().JSON(),
		host:      listing.HostOf(endpoint),
		mailbox:   r.relay.Owns(card),
	}, nil
}

// hasDerivedID reports whether the id of the card is derived from its key (AM-2).
func (c candidate) hasDerivedID(now time.Time) bool {
	return signing.ProvesID(c.card, c.key, now) == nil
}

// checkReservedID returns [wire.ErrIDReserved] if the id has the shape of a derived id but is not derived from the
// card's key. Only first registrations are checked: AM-60 applies to registered cards.
func (c candidate) checkReservedID(now time.Time) error {
	if !c.card.ID.HasDerivedShape() {
		return nil
	}
	if err := signing.ProvesID(c.card, c.key, now); err != nil {
		return wire.ErrIDReserved.Because(err)
	}
	return nil
}

// usableKey parses a key and checks that it is acceptable at now (AM-8).
func (r *Registry) usableKey(text string, now time.Time) (*signing.PublicKey, error) {
	key, err := r.keys.Parse(text)
	if err == nil {
		err = key.Usable(now)
	}
	if refused, ok := errors.AsType[*signing.KeyError](err); ok {
		return nil, wire.ErrCard.At("public_key: " + refused.Reason).Because(err)
	}
	if err != nil {
		return nil, wire.ErrCard.At("public_key").Because(err)
	}
	return key, nil
}

// allowHTTP reports whether an endpoint at this host may use http, and may name the host by its address. The host must
// be loopback in the local profile (AM-82), or an address in a network that the operator listed (AM-80). A host name is
// never allowed by its network, because the directory does not resolve names.
func (r *Registry) allowHTTP(host string) bool {
	if r.cfg.Local && httpapi.LoopbackHost(host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && slices.ContainsFunc(r.cfg.AllowPrivate, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}
