package directory

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Submission is what a client hands in with POST or PUT.
type Submission struct {
	// Body reads the card. It is called when its turn in the order of AM-51 comes; nil is an empty body.
	Body func() ([]byte, error)
	// Bearer is the credential.
	Bearer string
	// Invite is the code beside a credential of one's own choice; "" where the bearer may be the code.
	Invite string
	// Proof and PreviousProof are the headers of AM-62 and AM-60, "" where there are none.
	Proof, PreviousProof string
	// Client is who pays for it; not valid for a caller inside the process.
	Client netip.Addr
	// Host is the host that the request named.
	Host string
}

func (s Submission) read() ([]byte, error) {
	if s.Body == nil {
		return nil, nil
	}
	return s.Body()
}

// candidate is a card that may be registered as far as it alone is concerned.
type candidate struct {
	card      wire.Card
	key       *signing.PublicKey
	submitted wire.Value // what a key proof covers
	served    []byte
	host      string
	mailbox   bool // the endpoint is the agent's mailbox here (AM-66)
}

// parse reads a card under AM-4, AM-5 and AM-12.
func (r *Registry) parse(body []byte) (wire.Card, error) {
	if len(body) > wire.MaxCard {
		return wire.Card{}, wire.ErrTooLarge
	}
	tree, err := wire.ParseObject(body)
	if syntax, ok := errors.AsType[*wire.SyntaxError](err); ok {
		return wire.Card{}, wire.ErrSyntax.At(syntax.Reason).Because(err)
	}
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: r.allowHTTP})
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return wire.Card{}, wire.ErrCard.Refused(field)
	}
	return card, err
}

// judge decides whether a card may be registered: the checks that AM-51 puts after the bearer.
func (r *Registry) judge(card wire.Card, proven bool, now time.Time) (candidate, error) {
	key, err := r.usableKey(card.PublicKey, now)
	if err != nil {
		return candidate{}, err
	}
	if proven && card.PrivateLists() { // AM-6: dropping them would break the proof
		return candidate{}, wire.ErrCard.Refused(&wire.FieldError{Field: "access_control", Reason: "must hold the mode alone when the key is proven"})
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
		host:      hostOf(endpoint),
		mailbox:   r.ownMailbox(card),
	}, nil
}

// derived reports whether the id of the card leads to its key (AM-2).
func (c candidate) derived(now time.Time) bool { return signing.ProvesID(c.card, c.key, now) == nil }

// reserved returns [wire.ErrIDReserved] if the id has the shape of a derived one and does not lead to the card's key. Only
// a first registration is refused for that: what is registered already keeps to AM-60.
func (c candidate) reserved(now time.Time) error {
	if !c.card.ID.HasDerivedShape() {
		return nil
	}
	if err := signing.ProvesID(c.card, c.key, now); err != nil {
		return wire.ErrIDReserved.Because(err)
	}
	return nil
}

// usableKey parses a key and judges it now (AM-8).
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

// allowHTTP says which hosts an endpoint may name over http or as an address: loopback ones in the local
// profile (AM-82), and addresses of the networks that the operator listed (AM-80). A name is never allowed by
// its network: the directory does not resolve it.
func (r *Registry) allowHTTP(host string) bool {
	if r.cfg.Local && httpapi.LoopbackHost(host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && slices.ContainsFunc(r.cfg.AllowPrivate, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}
