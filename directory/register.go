package directory

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/directory/submission"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// attempts is how often a write is tried if it loses to other writers of the same card or invite code.
const attempts = 32

// Register registers a card (POST, AM-51; the response is 201). If the credential already owns the id, Register renews
// the card, or lists a withdrawn or expired card again. A card that the operator handed over gets the credential of the
// first registration that proves its key.
func (r *Registry) Register(ctx context.Context, s Submission) (wire.Registered, error) {
	if r.cfg.ReadOnly {
		return wire.Registered{}, errMirror
	}
	if err := r.gate.CheckBearer(s.Bearer); err != nil {
		return wire.Registered{}, err
	}
	now := wire.Now()
	body, err := s.Read()
	if err != nil {
		return wire.Registered{}, err
	}
	c, err := r.rules.CheckCard(body, submission.AnyID, s.Proof != "", now)
	if err != nil {
		return wire.Registered{}, err
	}
	owner := credential.HashOf(s.Bearer)
	reg := registration{r: r, sub: s, candidate: c, owner: owner, charge: r.gate.NewCharge(s.Client, owner, now), now: now}
	result, err := reg.run(ctx)
	if err != nil {
		reg.charge.Refund()
	}
	return result, err
}

// registration is one POST request whose card is valid.
type registration struct {
	r         *Registry
	sub       Submission
	candidate submission.Candidate
	owner     [32]byte
	charge    *admission.Charge
	now       time.Time
}

// run calls try until no other writer interferes.
func (g *registration) run(ctx context.Context) (wire.Registered, error) {
	for range attempts {
		result, err := g.try(ctx)
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrReserved) {
			return result, err
		}
	}
	return wire.Registered{}, wire.ErrUnavailable.Because(errors.New("lost every race for the id"))
}

// try checks the bans, runs the remaining checks in the order of AM-51 (mode, key proof, quotas, id) and stores the
// card. If it returns [store.ErrConflict] or [store.ErrReserved], another writer was faster, and the caller may try
// again.
func (g *registration) try(ctx context.Context) (wire.Registered, error) {
	r := g.r
	if err := r.bans.Check(ctx, g.candidate.Card.ID, g.candidate.Key, g.candidate.Host, g.sub.Client, g.now); err != nil {
		return wire.Registered{}, err
	}
	held, err := r.cards.Held(ctx, string(g.candidate.Card.ID), g.now)
	taken := err == nil // the id belongs to a card, or is reserved
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return wire.Registered{}, err
	}
	to := submission.Target{Method: http.MethodPost, Path: "/agents"}
	if taken && !credential.Hash(held.Owner).Equal(g.owner) && canTakeOver(held, g.sub, g.candidate) {
		held.Owner = g.owner
	}
	if taken && credential.Hash(held.Owner).Equal(g.owner) {
		return r.replace(ctx, held, g.sub, to, g.candidate, g.now)
	}
	inviteChanges, err := r.gate.Admit(ctx, admission.Applicant{Agent: g.candidate.Card.ID, Owner: g.owner, Bearer: g.sub.Bearer, Invite: g.sub.Invite, Client: g.sub.Client}, g.now)
	if err != nil {
		return wire.Registered{}, err
	}
	proof, err := r.rules.CheckProof(g.sub, to, g.candidate, g.now)
	if err != nil {
		return wire.Registered{}, err
	}
	chargeChanges, err := g.charge.Take(ctx)
	if err != nil {
		return wire.Registered{}, err
	}
	if err := g.candidate.CheckReservedID(g.now); err != nil {
		return wire.Registered{}, err
	}
	m := listing.Meta{Head: listing.Head{Derived: g.candidate.HasDerivedID(g.now)}, Current: wire.KeyChange{Since: g.now}}
	m.SetProof(proof.Header, proof.Text, g.now)
	row := newRow(g.candidate, g.owner, m, r.cfg.Lifetime, g.now)
	put := store.PutCard{Card: row, IfRev: store.Absent, Records: append(chargeChanges, inviteChanges...), Now: g.now}
	r.gate.AddQuotas(&put)
	result, err := r.put(ctx, put, g.candidate, m, "registered")
	if taken && (errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrReserved)) { // another owner has the id
		return wire.Registered{}, wire.ErrIDTaken
	}
	return result, err
}

// replace renews or changes a card for its owner, or lists a withdrawn or expired card again.
func (r *Registry) replace(ctx context.Context, held store.Card, s Submission, t submission.Target, c submission.Candidate, now time.Time) (wire.Registered, error) {
	proof, err := r.rules.CheckProof(s, t, c, now)
	if err != nil {
		return wire.Registered{}, err
	}
	m, err := r.rules.NextMeta(held, s, c, proof, now)
	if err != nil {
		return wire.Registered{}, err
	}
	row := newRow(c, held.Owner, m, r.cfg.Lifetime, now)
	put := store.PutCard{Card: row, IfRev: held.Rev, Now: now}
	if !held.Live(now) || !slices.Equal(slices.Sorted(slices.Values(held.Counts)), slices.Sorted(slices.Values(row.Counts))) { // quotas do not refuse a card that they already count
		r.gate.AddQuotas(&put)
	}
	return r.put(ctx, put, c, m, "renewed")
}

// put stores a card, whose Meta is m, and queues the first probe of its endpoint. verb is for the log; put also counts
// the card as new if verb is "registered".
func (r *Registry) put(ctx context.Context, put store.PutCard, c submission.Candidate, m listing.Meta, verb string) (wire.Registered, error) {
	stored, err := r.cards.Put(ctx, put)
	switch {
	case errors.Is(err, store.ErrQuota):
		return wire.Registered{}, wire.ErrQuota
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrReserved):
		return wire.Registered{}, err // nothing was written: caches stay valid
	}
	r.afterWrite(put.Card.ID) // after other errors the outcome may be unknown
	if err != nil {
		return wire.Registered{}, err
	}
	if m.Probed.IsZero() {
		r.prober.Add(c.Card)
	}
	r.cfg.Logger.InfoContext(ctx, "card "+verb, "agent_id", stored.ID, "expires", stored.Expires)
	return wire.Registered{AgentID: wire.AgentID(stored.ID), RegisteredAt: stored.Registered, ExpiresAt: stored.Expires}, nil
}

// newRow returns the stored form of a card that expires after life (AM-55).
func newRow(c submission.Candidate, owner [32]byte, m listing.Meta, life time.Duration, now time.Time) store.Card {
	terms, host := searchTerms(c.Card), c.Host
	if c.Mailbox {
		terms, host = append(terms, mailbox.CardTerm(owner)), "" // mailboxes are not counted by host
	}
	expires := now.Add(life)
	return store.Card{
		ID:            string(c.Card.ID),
		Body:          c.Served,
		Meta:          m.Encode(),
		Owner:         owner,
		Terms:         replaceCheckTerms(m, terms, now),
		Counts:        admission.Counts(owner, host),
		Registered:    now,
		Updated:       now,
		Expires:       expires,
		ReservedUntil: expires.Add(reservation),
	}
}

// getForOwner returns the card with this id to its owner. It fails with 401 without a credential, then 404 for an
// unknown id, then 403 for a wrong credential (AM-51). A throttled address gets 429 instead of 404 and 403. If revive
// is set, it also returns an expired card whose id is still reserved (AM-55). A withdrawn card comes back only by POST.
//
// It compares the credential even if the id is unknown, so that an unknown id takes as long as the id of another owner.
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
	if !mine { // the throttle exempts the owner, who may share the address with others
		if err := r.gate.CheckThrottle(client, now); err != nil {
			return store.Card{}, err
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.Card{}, wire.ErrNoAgent
	case err != nil:
		return store.Card{}, err
	case held.Live(now) && !mine:
		r.gate.CountFailure(ctx, client, now)
		return store.Card{}, wire.ErrWrongBearer
	case held.Live(now), mine && revive && !held.Withdrawn:
		return held, nil
	}
	return store.Card{}, wire.ErrNoAgent
}

// Renew replaces the card with this id for its owner (PUT; the response is 200). An empty body renews the card
// unchanged. The checks come in the order of AM-51: 401, 404 and 403, then the body.
func (r *Registry) Renew(ctx context.Context, id wire.AgentID, s Submission) (wire.Registered, error) {
	if r.cfg.ReadOnly {
		return wire.Registered{}, errMirror
	}
	now := wire.Now()
	held, err := r.getForOwner(ctx, id, s.Bearer, s.Client, true, now) // true: an expired card may come back
	if err != nil {
		return wire.Registered{}, err
	}
	body, err := s.Read()
	if err != nil {
		return wire.Registered{}, err
	}
	to := submission.Target{Method: http.MethodPut, Path: "/agents/" + string(id)}
	for range attempts {
		sent := body
		if len(sent) == 0 {
			sent = held.Body
		}
		c, err := r.rules.CheckCard(sent, id, s.Proof != "", now)
		if err == nil {
			err = r.bans.Check(ctx, c.Card.ID, c.Key, c.Host, s.Client, now)
		}
		if err != nil {
			return wire.Registered{}, err
		}
		result, err := r.replace(ctx, held, s, to, c, now)
		if !errors.Is(err, store.ErrConflict) {
			return result, err
		}
		if held, err = r.getForOwner(ctx, id, s.Bearer, s.Client, true, now); err != nil {
			return wire.Registered{}, err
		}
	}
	return wire.Registered{}, wire.ErrUnavailable.Because(errors.New("lost every race for the card"))
}

// Withdraw removes the card with this id for its owner (DELETE). The id stays reserved for a while (AM-55).
func (r *Registry) Withdraw(ctx context.Context, id wire.AgentID, s Submission) error {
	if r.cfg.ReadOnly {
		return errMirror
	}
	now := wire.Now()
	for range attempts {
		held, err := r.getForOwner(ctx, id, s.Bearer, s.Client, false, now) // false: only a live card
		if err != nil {
			return err
		}
		err = r.cards.Withdraw(ctx, held.ID, held.Rev, now.Add(reservation), nil, now)
		r.afterWrite(held.ID)
		switch {
		case errors.Is(err, store.ErrConflict):
			continue
		case errors.Is(err, store.ErrNotFound):
			return wire.ErrNoAgent
		case err != nil:
			return err
		}
		r.cfg.Logger.InfoContext(ctx, "card withdrawn", "agent_id", held.ID)
		return nil
	}
	return wire.ErrUnavailable.Because(errors.New("lost every race for the card"))
}
