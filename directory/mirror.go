package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/submission"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	mirrorRecord = "mirror:" // prefix of the key of our position in a feed; the name of the mirrored directory follows
	mirrorWait   = 25 * time.Second
	mirrorIdle   = 5 * time.Second // between two requests that returned nothing
	mirrorRetry  = time.Second     // after the first failure; doubled after each further one
	mirrorPause  = 5 * time.Minute // the longest pause, plus or minus up to half of it
	maxSources   = 16              // positions of earlier sources that are removed at once
)

var errMirror = wire.ErrClosed.At("this is a read-only mirror; register at the directory that it mirrors")

// Follow keeps this directory a mirror of source until ctx ends. It reads the feed of source and copies the cards that
// pass this directory's own checks. A mirrored key counts as proven only if its key proof verifies here. This directory
// probes endpoints itself. The registry must be [Config.ReadOnly].
//
// Follow stores its position in the feed after each page, so a restart continues there. A mirror lists cards in the
// order in which it got them.
func (r *Registry) Follow(ctx context.Context, source *client.Directory) {
	failures := 0
	for ctx.Err() == nil {
		asked := time.Now()
		moved, err := r.followOnce(ctx, source, mirrorWait)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			if !moved { // if the source did not wait, because it cannot or has too many readers, wait here
				waiting.Pause(ctx, mirrorIdle-time.Since(asked))
			}
			continue
		}
		wait := min(mirrorRetry<<min(failures, 20), mirrorPause)
		wait = wait/2 + rand.N(wait)
		failures++
		r.cfg.Logger.WarnContext(ctx, "mirror cannot follow its source", "source", source.Base, "again_in", wait, "err", err)
		waiting.Pause(ctx, wait)
	}
}

// followOnce applies one page of the feed. If nothing has changed yet, the source waits for at most wait. moved reports
// whether the page had changes.
func (r *Registry) followOnce(ctx context.Context, source *client.Directory, wait time.Duration) (moved bool, err error) {
	now := wire.Now()
	key := mirrorRecord + source.StoredName()
	since, rec := "", store.Record{NS: recordNS, Key: key}
	held, err := r.recs.Get(ctx, recordNS, key, now)
	switch {
	case err == nil:
		since = string(held.Body)
	case !errors.Is(err, store.ErrNotFound):
		return false, err
	default:
		if err := r.dropOtherSources(ctx, key, now); err != nil {
			return false, fmt.Errorf("drop the cards of an earlier source: %w", err)
		}
	}
	page, err := source.Changes(ctx, since, wait)
	if dirErr, ok := errors.AsType[*client.DirectoryError](err); ok && dirErr.Status == 400 && dirErr.Code == wire.InvalidMessage && since != "" {
		// Another directory answers there now, or the source was restored from a backup. So the old feed now counts as
		// another source, named former: the next call drops all cards, and reads the whole new feed.
		r.cfg.Logger.WarnContext(ctx, "the source does not know our position in its feed: reading the whole feed again", "source", source.Base)
		former := store.Record{NS: recordNS, Key: key + " before"}
		return false, r.recs.Apply(ctx, []store.Change{{Record: rec, IfRev: store.Any, Delete: true}, {Record: former, IfRev: store.Any}}, now)
	}
	if err != nil {
		return false, err
	}
	for _, c := range page.Changes {
		if err := r.mirrorChange(ctx, source, c); err != nil {
			return false, fmt.Errorf("mirror %s: %w", c.AgentID, err)
		}
	}
	if page.Next == since {
		return false, nil
	}
	rec.Body = []byte(page.Next)
	return len(page.Changes) > 0, r.recs.Apply(ctx, []store.Change{{Record: rec, IfRev: store.Any}}, wire.Now())
}

// dropOtherSources removes all cards if this mirror followed another source. It also removes the positions in all feeds
// except the one with this key.
func (r *Registry) dropOtherSources(ctx context.Context, key string, now time.Time) error {
	page, err := r.recs.List(ctx, recordNS, "", mirrorRecord, maxSources, now) // keys after mirrorRecord: those with this prefix come first
	if err != nil {
		return err
	}
	for _, rec := range page.Records {
		if !strings.HasPrefix(rec.Key, mirrorRecord) || rec.Key == key {
			continue
		}
		for c, err := range listing.All(ctx, r.cards) {
			if err == nil {
				err = r.dropCard(ctx, wire.Change{AgentID: wire.AgentID(c.ID), Change: wire.ChangeWithdrawn})
			}
			if err != nil {
				return err
			}
		}
		if err := r.recs.Apply(ctx, []store.Change{{Record: store.Record{NS: recordNS, Key: rec.Key}, IfRev: store.Any, Delete: true}}, now); err != nil {
			return err
		}
	}
	return nil
}

// mirrorChange applies one change of the source. It drops a card that fails our checks, without an error.
func (r *Registry) mirrorChange(ctx context.Context, source *client.Directory, c wire.Change) error {
	if c.Record == nil {
		return r.dropCard(ctx, c)
	}
	now := wire.Now()
	held, err := r.cards.Held(ctx, string(c.AgentID), now)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	card, err := r.newMirrorRow(ctx, source, *c.Record, held, now)
	if err != nil {
		if errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		r.cfg.Logger.WarnContext(ctx, "a card of the source is not acceptable here", "agent_id", c.AgentID, "err", err)
		return r.dropCard(ctx, c)
	}
	if held.Live(now) && bytes.Equal(held.Body, card.Body) && bytes.Equal(held.Meta, card.Meta) && held.Expires.Equal(card.Expires) {
		return nil // only the source's own verification changed
	}
	_, err = r.cards.Put(ctx, store.PutCard{Card: card, IfRev: store.Any, Now: now})
	r.afterWrite(card.ID)
	if err == nil {
		r.prober.AddIfDue(card, now)
	}
	return err
}

// dropCard withdraws the card of a change. If an operator removed the card at the source, it also stores the reason.
func (r *Registry) dropCard(ctx context.Context, c wire.Change) error {
	now := wire.Now()
	var changes []store.Change
	if c.Change == wire.ChangeRemoved && moderation.CheckReason(c.Reason) == nil {
		changes = append(changes, moderation.Removal{AgentID: c.AgentID, Reason: c.Reason, At: now}.Change())
	}
	err := r.cards.Withdraw(ctx, string(c.AgentID), store.Any, now.Add(reservation), changes, now)
	r.afterWrite(string(c.AgentID))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// newMirrorRow checks a card of the source, and returns the row that stores it here. held is its current row, or the
// zero value.
func (r *Registry) newMirrorRow(ctx context.Context, source *client.Directory, rec wire.CardRecord, held store.Card, now time.Time) (store.Card, error) {
	c, err := r.rules.CheckCard(rec.Card.JSON(), submission.AnyID, false, now) // false: this is not a request with a key proof
	if err != nil {
		return store.Card{}, err
	}
	if err := r.bans.Check(ctx, c.Card.ID, c.Key, c.Host, noClient, now); err != nil {
		return store.Card{}, err
	}
	if !now.Before(rec.ExpiresAt) {
		return store.Card{}, errors.New("the card has expired")
	}
	m, err := r.newMirrorMeta(source, rec, c, held, now)
	if err != nil {
		return store.Card{}, err
	}
	stored := newRow(c, [32]byte{}, m, maxLifetime, now)     // without an owner: no credential has this hash
	stored.Registered, stored.Counts = rec.RegisteredAt, nil // quotas do not count mirrored cards
	if rec.ExpiresAt.Before(stored.Expires) {
		stored.Expires = rec.ExpiresAt
	}
	stored.ReservedUntil = stored.Expires
	return stored, nil
}

// newMirrorMeta returns the Meta of a mirrored card: its key proof if that verifies here, and what we know about its
// endpoint. A changed key counts as replaced, because only the directory that received a rotation can verify it.
func (r *Registry) newMirrorMeta(source *client.Directory, rec wire.CardRecord, c submission.Candidate, held store.Card, now time.Time) (listing.Meta, error) {
	m := listing.Meta{Head: listing.Head{Derived: c.HasDerivedID(now)}, Current: wire.KeyChange{Since: rec.RegisteredAt}}
	if at := rec.Verification.KeyChangedAt; at != nil && !at.After(now) {
		m.Replaced, m.Current.Since = *at, *at
	}
	if held.ID != "" {
		oldCard, oldMeta, err := listing.Parse(held)
		if err != nil {
			return listing.Meta{}, err
		}
		if listing.SameKey(oldCard.PublicKey, c.Card.PublicKey) != nil {
			m.Replaced, m.Current.Since = now, now
		} else {
			m.Current, m.Replaced = oldMeta.Current, slices.MaxFunc([]time.Time{m.Replaced, oldMeta.Replaced}, time.Time.Compare)
			if oldCard.Endpoint == c.Card.Endpoint {
				m.Endpoint, m.Alive, m.Probed, m.Misses = oldMeta.Endpoint, oldMeta.Alive, oldMeta.Probed, oldMeta.Misses
			}
		}
	}
	if provenAt, text, ok := r.rules.CheckSourceProof(rec.KeyProof, source.Base, source.Loopback, c, now); ok {
		m.Proof, m.Proven = rec.KeyProof, provenAt
		if m.Current.Proof == "" {
			m.Current.Proof, m.Current.ProofText = rec.KeyProof, text
		}
	}
	return m, nil
}
