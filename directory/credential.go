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

// Lengths of a credential, in visible ASCII characters (AM-56).
const (
	minCredential      = 16
	minCredentialLocal = 1
	maxCredential      = 256
)

// checkBearer returns an error if a bearer token cannot be the credential of a card because it is missing or malformed.
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

// isOperator reports whether owner is a credential of the operator.
func (r *Registry) isOperator(owner [32]byte) bool {
	return slices.ContainsFunc(r.cfg.Operators, func(o [32]byte) bool { return credential.Hash(o).Equal(owner) })
}

// checkThrottle refuses an address that sent too many wrong credentials (AM-56).
func (r *Registry) checkThrottle(client netip.Addr, now time.Time) error {
	if !client.IsValid() {
		return nil
	}
	if wait := r.failures.Admit(client, now); wait > 0 {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// checkThrottleUnlessKnown calls checkThrottle unless the bearer token is the credential of some card: even a throttled
// address may use the credential of an existing card.
func (r *Registry) checkThrottleUnlessKnown(ctx context.Context, bearer string, client netip.Addr, now time.Time) error {
	refused := r.checkThrottle(client, now)
	if refused == nil {
		return nil
	}
	if known, err := r.cards.HasCount(ctx, tokenCount(credential.HashOf(bearer)), now); err != nil || !known {
		return refused
	}
	return nil
}

// countFailure counts a wrong credential against the client's address. If the address is unknown, the response is
// delayed instead.
func (r *Registry) countFailure(ctx context.Context, client netip.Addr, now time.Time) {
	if client.IsValid() {
		r.failures.Fault(client, now)
		r.cfg.Addresses.Delay(ctx, client)
	}
}

// getForOwner returns the card of id to its owner. It fails with 401 without a credential, then with 404 for an unknown
// id, then with 403 for a wrong credential (AM-51); a throttled address gets 429 instead of the last two. With revive, it
// also returns an expired card whose id is still reserved (AM-55). A withdrawn card comes back only by POST.
//
// The credential is compared even if the id is unknown, so that an unknown id takes as long as a foreign one.
func (r *Registry) getForOwner(ctx context.Context, id wire.AgentID, bearer string, client netip.Addr, revive bool, now time.Time) (store.Card, error) {
	if bearer == "" {
		return store.Card{}, wire.ErrNoBearer
	}
	var held store.Card
	err := store.ErrNotFound
	if id.Valid() {
		held, err = r.cards.Held(ctx, string(id), now)
	}
	mine := credential.HashOf(bearer).Equal(held.Owner)
	if !mine { // the owner may share a throttled address with others
		if err := r.checkThrottle(client, now); err != nil {
			return store.Card{}, err
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Card{}, wire.ErrNoAgent
	case err != nil:
		return store.Card{}, err
	case held.Live(now) && !mine:
		r.countFailure(ctx, client, now)
		return store.Card{}, wire.ErrWrongBearer
	case held.Live(now), mine && revive && !held.Withdrawn:
		return held, nil
	}
	return store.Card{}, wire.ErrNoAgent
}
