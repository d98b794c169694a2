// Package submission checks the cards that clients submit to a directory, and their key proofs. It stores nothing and
// knows no other cards.
package submission

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
	// Body reads the card. It is called only after the first checks of AM-51. If it is nil, the body is empty.
	Body func() ([]byte, error)
	// Bearer is the credential.
	Bearer string
	// Invite is an invite code for a client that chose its own credential. If it is "", Bearer may be a code.
	Invite string
	// Proof and PreviousProof are the headers of AM-62 and AM-60, or "".
	Proof, PreviousProof string
	// Client is the address that is charged; it is invalid for a caller in this process.
	Client netip.Addr
	// Host is the host in the request.
	Host string
}

// Read reads the card.
func (s Submission) Read() ([]byte, error) {
	if s.Body == nil {
		return nil, nil
	}
	return s.Body()
}

// Rules are the rules of a directory for cards.
type Rules struct {
	BaseURL      string         // of the directory, "https://directory.example.com/v1"
	Local        bool           // the local profile (AM-82)
	AllowPrivate []netip.Prefix // networks whose addresses an endpoint may name (AM-80)
	Keys         *signing.KeyCache
	IsMailbox    func(wire.Card) bool // reports whether the endpoint of a card is its mailbox in the directory
}

// Candidate is a card that passed [Rules.CheckCard].
type Candidate struct {
	Card      wire.Card
	Key       *signing.PublicKey
	Served    []byte     // the card without its private lists
	Host      string     // of the endpoint
	Mailbox   bool       // the endpoint is the agent's mailbox here (AM-66)
	submitted wire.Value // what a key proof covers
}

// AnyID makes [Rules.CheckCard] accept every id.
const AnyID wire.AgentID = ""

// CheckCard parses a card according to AM-4, AM-5 and AM-12, and checks its id and its key (AM-8). hasProof reports
// whether the request has a key proof.
func (r Rules) CheckCard(body []byte, id wire.AgentID, hasProof bool, now time.Time) (Candidate, error) {
	if len(body) > wire.MaxCard {
		return Candidate{}, wire.ErrTooLarge
	}
	tree, err := wire.ParseObject(body)
	if syntax, ok := errors.AsType[*wire.SyntaxError](err); ok {
		return Candidate{}, wire.ErrSyntax.At(syntax.Reason).Because(err)
	}
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: r.allowHTTP})
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return Candidate{}, wire.ErrCard.WithField(field)
	}
	if err != nil {
		return Candidate{}, err
	}
	if id != AnyID && card.ID != id {
		return Candidate{}, wire.ErrCardID
	}
	key, err := r.Keys.Parse(card.PublicKey)
	if err == nil {
		err = key.Usable(now)
	}
	if keyErr, ok := errors.AsType[*signing.KeyError](err); ok {
		return Candidate{}, wire.ErrCard.At("public_key: " + keyErr.Reason).Because(err)
	}
	if err != nil {
		return Candidate{}, wire.ErrCard.At("public_key").Because(err)
	}
	if hasProof && card.HasPrivateLists() { // AM-6: the directory drops private lists, which would break the proof
		return Candidate{}, wire.ErrCard.WithField(&wire.FieldError{Field: "access_control", Reason: "must contain only mode if the request has a key proof"})
	}
	endpoint, err := url.Parse(card.Endpoint)
	if err != nil {
		return Candidate{}, wire.ErrCard.Because(err) // cannot happen: ParseCard has parsed it
	}
	c := Candidate{
		Card:      card,
		Key:       key,
		Served:    card.WithoutPrivateLists().JSON(),
		Host:      listing.HostOf(endpoint),
		Mailbox:   r.IsMailbox(card),
		submitted: card.Tree,
	}
	if _, err := netip.ParseAddr(c.Host); err == nil && c.Mailbox {
		c.Host = "" // our own address: a ban of its network does not apply to owners of mailboxes
	}
	return c, nil
}

// HasDerivedID reports whether the id of the card is derived from its key (AM-2).
func (c Candidate) HasDerivedID(now time.Time) bool {
	return signing.ProvesID(c.Card, c.Key, now) == nil
}

// CheckReservedID returns [wire.ErrIDReserved] if the id has the shape of a derived id but is not derived from the
// card's key. Use it for first registrations only: AM-60 applies to registered cards.
func (c Candidate) CheckReservedID(now time.Time) error {
	if !c.Card.ID.HasDerivedShape() {
		return nil
	}
	if err := signing.ProvesID(c.Card, c.Key, now); err != nil {
		return wire.ErrIDReserved.Because(err)
	}
	return nil
}

// allowHTTP reports whether an endpoint at this host may use http, and may name the host by its address. The host must
// be loopback in the local profile (AM-82), or an address in a network that the operator listed (AM-80). A host name
// never counts as part of a network, because the directory does not resolve names.
func (r Rules) allowHTTP(host string) bool {
	if r.Local && httpapi.LoopbackHost(host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && slices.ContainsFunc(r.AllowPrivate, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}
