package directory

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Length of a credential in visible ASCII characters (AM-56).
const (
	minCredential      = 16
	minCredentialLocal = 1
	maxCredential      = 256
)

// checkBearer returns why a bearer cannot be the credential of a card: it is missing, or it has the wrong form.
func (r *Registry) checkBearer(bearer string) error {
	least := minCredential
	if r.cfg.Local {
		least = minCredentialLocal
	}
	visible := !strings.ContainsFunc(bearer, func(c rune) bool { return c <= ' ' || c > '~' })
	switch {
	case bearer == "":
		return wire.ErrNoBearer
	case len(bearer) < least || len(bearer) > maxCredential || !visible:
		return wire.ErrNoBearer.At(fmt.Sprintf("the given one must have %d to %d visible ASCII characters", least, maxCredential))
	}
	return nil
}

func (r *Registry) operator(owner [32]byte) bool {
	return slices.ContainsFunc(r.cfg.Operators, func(o [32]byte) bool { return credential.Hash(o).Equal(owner) })
}

// throttled refuses an address that showed too many wrong credentials (AM-56).
func (r *Registry) throttled(client netip.Addr, now time.Time) error {
	if !client.IsValid() {
		return nil
	}
	if wait := r.failures.Admit(client, now); wait > 0 {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// screen is throttled for a bearer that must be the credential of some card: with such a one every address is let in.
func (r *Registry) screen(ctx context.Context, bearer string, client netip.Addr, now time.Time) error {
	refused := r.throttled(client, now)
	if refused == nil {
		return nil
	}
	if known, err := r.cards.HasCount(ctx, tokenCount(credential.HashOf(bearer)), now); err != nil || !known {
		return refused
	}
	return nil
}

// failed counts a wrong credential. For a client that nothing tells from others it takes a second instead.
func (r *Registry) failed(ctx context.Context, client netip.Addr, now time.Time) {
	if client.IsValid() {
		r.failures.Fault(client, now)
		r.cfg.Addresses.Delay(ctx, client)
	}
}

// owned returns the card of id for its owner: 404 before 403 (AM-51). With revive that includes an expired card
// whose id is still reserved (AM-55); a withdrawn one only POST takes back. The comparison is made in any case,
// so that an unknown id takes as long as a foreign one.
func (r *Registry) owned(ctx context.Context, id wire.AgentID, bearer string, client netip.Addr, revive bool, now time.Time) (store.Card, error) {
	if bearer == "" {
		return store.Card{}, wire.ErrNoBearer
	}
	var held store.Card
	err := store.ErrNotFound
	if id.Valid() {
		held, err = r.cards.Held(ctx, string(id), now)
	}
	mine := credential.HashOf(bearer).Equal(held.Owner)
	if !mine { // the owner is let in from an address that others share
		if err := r.throttled(client, now); err != nil {
			return store.Card{}, err
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Card{}, wire.ErrNoAgent
	case err != nil:
		return store.Card{}, err
	case held.Live(now) && !mine:
		r.failed(ctx, client, now)
		return store.Card{}, wire.ErrWrongBearer
	case held.Live(now), mine && revive && !held.Withdrawn:
		return held, nil
	}
	return store.Card{}, wire.ErrNoAgent
}
