package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// ErrUnusableCard: there is a card, but it breaks the rules for cards or its key cannot be used.
var ErrUnusableCard = errors.New("the card is not usable")

// missError is a miss that the negative cache answered with.
type missError struct {
	err  error
	left time.Duration
}

func (e *missError) Error() string { return e.err.Error() }
func (e *missError) Unwrap() error { return e.err }

// publicError says what a stranger is told about a lookup that failed (line 7 and 8).
func publicError(err error) error {
	if told, ok := errors.AsType[*wire.Error](err); ok {
		return told
	}
	_, changed := errors.AsType[*KeyChangedError](err)
	switch {
	case changed:
		return wire.ErrSignature.Because(err)
	case errors.Is(err, ErrUnreachable):
		told := wire.ErrNoDirectory.Because(err)
		if m, ok := errors.AsType[*missError](err); ok {
			told = told.After(m.left)
		}
		return told
	case errors.Is(err, ErrUnknownAgent), errors.Is(err, ErrUnusableCard):
		return wire.ErrUnknownSender.Because(err)
	}
	return wire.ErrUnavailable.Because(err)
}

// cacheable says whether a failure is about the agent or its directory, and not about this call or our store.
func cacheable(err error) bool {
	told := publicError(err)
	return !errors.Is(told, wire.ErrUnavailable)
}

// fetch finds the agent's card: the one that the owner gave, else the first directory that lists the agent with the
// key that is pinned (any key where none is). old is the entry to revalidate, if any.
func (c *Cards) fetch(ctx context.Context, id wire.AgentID, old *entry, refresh bool, pay *payment, now time.Time) (*entry, error) {
	pin, err := c.loadPin(ctx, id, now)
	if err != nil {
		return nil, err
	}
	if old != nil && pin.Fingerprint == "" && !old.peer.Pinned.IsZero() && c.cfg.Records == nil {
		pin = pinOf(old.peer) // all that is remembered without a store
	}
	given, err := c.given(ctx, id, pin, now)
	if err != nil || given != nil && !refresh {
		return given, err
	}
	if pin.Owner {
		pay = nil // the owner knows the agent
	}
	found, err := c.ask(ctx, id, pin, old, given, pay, now)
	if given != nil && (errors.Is(err, ErrUnknownAgent) || err == nil && found.peer.Key.Fingerprint() == given.peer.Key.Fingerprint()) {
		return given, nil // the directories know no better than the owner
	}
	return found, err
}

// ask asks the directories. A directory that cannot be asked, that shows a key we must not follow, or a card whose id does
// not lead to its key does not keep a later one from listing the agent (AM-86). If none does, the first is a reason to
// come back, the second one to tell the owner, and the third one to return the card for the owner to decide.
func (c *Cards) ask(ctx context.Context, id wire.AgentID, pin pinned, old, given *entry, pay *payment, now time.Time) (*entry, error) {
	var unreachable, unusable error
	var change *offer
	var doubtful *entry
	for _, d := range c.order(pin.Directory) {
		etag := ""
		if old != nil && old.from == d && (pin.Fingerprint == "" || pin.Fingerprint == old.peer.Key.Fingerprint()) {
			etag = old.etag
		}
		if err := pay.take(d, id, now); err != nil {
			return nil, err
		}
		f, err := d.Fetch(ctx, id, etag)
		if errors.Is(err, ErrUnknownAgent) {
			continue
		} else if err != nil {
			unreachable = errors.Join(ErrUnreachable, err)
			continue
		}
		e, err := c.fetched(d, f, old, now)
		if err != nil {
			unusable = err
			continue
		}
		if pin.Fingerprint != "" && pin.Fingerprint != e.peer.Key.Fingerprint() {
			if why := c.vouched(ctx, d, pin, e.peer, now); why == nil {
				return c.follow(ctx, pin, e, given, now)
			} else if change == nil {
				change = &offer{e.peer, why}
			}
			continue
		}
		if e = pin.mark(e, now); !e.peer.IsDoubtful() {
			return e, nil
		} else if doubtful == nil {
			doubtful = e
		}
	}
	switch {
	case unreachable != nil:
		return nil, unreachable
	case change != nil:
		return nil, c.keyChanged(ctx, pin, *change, now)
	case doubtful != nil:
		return doubtful, nil
	case unusable != nil:
		return nil, unusable
	}
	return nil, ErrUnknownAgent
}

// fetched returns the entry of what a directory served; old is the one that was revalidated.
func (c *Cards) fetched(d *Directory, f Fetched, old *entry, now time.Time) (*entry, error) {
	if f.NotModified {
		e := *old
		e.fetched, e.asked, e.suspect, e.peer.Until = now, now, false, until(now, f.Fresh)
		e.peer.Pinned, e.peer.ownerPin, e.peer.known = time.Time{}, false, false
		e.peer.EndpointProven = f.EndpointProven
		return &e, nil
	}
	peer, err := c.read(f.Card, d.reach(c.cfg.HTTP), now)
	if err != nil {
		return nil, err
	}
	peer.Directory, peer.Until, peer.EndpointProven = d.Base, until(now, f.Fresh), f.EndpointProven
	return &entry{peer: peer, etag: f.ETag, from: d, fetched: now, asked: now}, nil
}

// order returns the directories in the order in which they are asked: the one where the agent was pinned, so that an
// id squatted elsewhere does not stand before it, then as configured (AM-86).
func (c *Cards) order(pinnedAt string) []*Directory {
	i := slices.IndexFunc(c.cfg.Directories, func(d *Directory) bool { return d.Base == pinnedAt })
	if i <= 0 {
		return c.cfg.Directories
	}
	list := slices.Clone(c.cfg.Directories)
	return slices.Insert(slices.Delete(list, i, i+1), 0, c.cfg.Directories[i])
}

// until is when a card must be looked up again (AM-45, AM-59).
func until(now time.Time, fresh time.Duration) time.Time {
	if fresh < 0 {
		return now.Add(maxFresh)
	}
	return now.Add(min(fresh, maxFresh))
}

// read makes a peer of a card: its rules, its key, and that the key can be used now.
func (c *Cards) read(v wire.Value, reach Reach, now time.Time) (Peer, error) {
	card, err := wire.ParseCard(v, wire.CardRules{AllowHTTP: c.cfg.HTTP.AllowHTTP(reach)})
	if err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrUnusableCard, err)
	}
	key, err := c.cfg.KeyCache.Parse(card.PublicKey)
	if err == nil {
		err = key.Usable(now)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("%w: %w", ErrUnusableCard, err)
	}
	return Peer{Card: card, Key: key, Reach: reach, Unproven: checkID(card, key, now)}, nil
}

// given returns the entry of a card that the owner gave, nil where there is none.
func (c *Cards) given(ctx context.Context, id wire.AgentID, pin pinned, now time.Time) (*entry, error) {
	if c.cfg.Records == nil {
		return nil, nil
	}
	rec, err := c.cfg.Records.Get(ctx, nsPeers, string(id), now)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the owner's card of %s: %w", id, err)
	}
	v, err := wire.ParseObject(rec.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusableCard, err)
	}
	e, err := c.givenEntry(v, now)
	if err != nil {
		return nil, err
	}
	return pin.mark(e, now), nil
}

func (c *Cards) givenEntry(card wire.Value, now time.Time) (*entry, error) {
	peer, err := c.read(card, c.givenReach(), now)
	if err != nil {
		return nil, err
	}
	peer.Until = now.Add(maxFresh)
	return &entry{peer: peer, fetched: now, asked: now}, nil
}

// givenReach is the reach of the owner's cards (AM-82).
func (c *Cards) givenReach() Reach {
	if c.cfg.HTTP.cfg.Local {
		return Loopback
	}
	return Public
}

// offer is a key that a directory shows and that we must not follow.
type offer struct {
	peer Peer
	why  error
}

// KeyChangedError: the agent shows another key than the pinned one, without its word for it. The owner decides.
type KeyChangedError struct {
	KeyChange
	cause error
}

func (e *KeyChangedError) Error() string {
	return fmt.Sprintf("the key of %s changed without a proof by its old key (was %s, is %s)", e.Agent, e.Old, e.New)
}

// Unwrap says why the new key was not followed.
func (e *KeyChangedError) Unwrap() error { return e.cause }

// Hint says what a person can do.
func (e *KeyChangedError) Hint() string {
	return "ask its owner over another channel, then accept or refuse the new key"
}
