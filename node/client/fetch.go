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

// ErrUnusableCard means that a card violates the rules for cards, or that its key cannot be used.
var ErrUnusableCard = errors.New("the card is not usable")

// missError is an earlier failure of a look-up, from the cache.
type missError struct {
	err       error
	remaining time.Duration // until the cache forgets the failure
}

func (e *missError) Error() string { return e.err.Error() }
func (e *missError) Unwrap() error { return e.err }

// publicError returns the refusal that a stranger gets after a failed look-up (lines 7 and 8 of the table
// "Receiving" in docs/protocol.md).
func publicError(err error) error {
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return refusal
	}
	_, changed := errors.AsType[*KeyChangedError](err)
	switch {
	case changed:
		return wire.ErrSignature.Because(err)
	case errors.Is(err, ErrUnreachable):
		refusal := wire.ErrNoDirectory.Because(err)
		if m, ok := errors.AsType[*missError](err); ok {
			refusal = refusal.After(m.remaining)
		}
		return refusal
	case errors.Is(err, ErrUnknownAgent), errors.Is(err, ErrUnusableCard):
		return wire.ErrUnknownSender.Because(err)
	}
	return wire.ErrUnavailable.Because(err)
}

// fetch finds the agent's card: the card that our owner added, otherwise the card that ask finds in the directories.
// If refresh is set, it asks the directories even if our owner added a card, but returns that card if they list no
// newer key. old is the cached entry to revalidate; it may be nil. If pay is nil, the look-up is free.
func (c *Cards) fetch(ctx context.Context, id wire.AgentID, old *entry, refresh bool, pay *payment, now time.Time) (*entry, error) {
	pin, err := c.loadPin(ctx, id, now)
	if err != nil {
		return nil, err
	}
	fromOwner, err := c.ownerCard(ctx, id, pin, now)
	if err != nil || fromOwner != nil && !refresh {
		return fromOwner, err
	}
	if pin.FromOwner {
		pay = nil // the owner knows the agent
	}
	found, err := c.ask(ctx, id, pin, old, fromOwner, pay, now)
	if fromOwner == nil {
		return found, err
	}
	_, changed := errors.AsType[*KeyChangedError](err) // anybody may have registered this id with another key
	if changed || errors.Is(err, ErrUnknownAgent) || errors.Is(err, ErrUnusableCard) ||
		err == nil && found.peer.Key.Fingerprint() == fromOwner.peer.Key.Fingerprint() {
		return fromOwner, nil // no directory has a newer key
	}
	return found, err
}

// ask asks the directories in order. It returns the first card with the pinned key, or with a key for which the pinned
// key vouches. Without a pin, it returns the first card that is not doubtful ([Peer.IsDoubtful], AM-86). If it finds no
// such card, the first case that applies decides:
//
//   - A directory could not be reached, or failed: ask returns [ErrUnreachable], so the caller tries again later.
//   - A directory lists a key for which the pinned key does not vouch: ask reports it to the owner.
//   - A card is doubtful: ask returns it, and the owner decides.
//   - A card is not usable: ask returns [ErrUnusableCard].
func (c *Cards) ask(ctx context.Context, id wire.AgentID, pin storedPin, old, fromOwner *entry, pay *payment, now time.Time) (*entry, error) {
	var unreachableErr, unusableErr error
	var change *offeredKey
	var doubtful *entry
	for _, d := range c.orderDirectories(pin.Directory) {
		etag := ""
		// If our copy is from d, and its key is the pinned one or none is pinned, d need not send the card again.
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
			unreachableErr = fmt.Errorf("%w: %w", ErrUnreachable, err)
			continue
		}
		e, err := c.newEntry(d, f, old, now)
		if err != nil {
			unusableErr = err
			continue
		}
		if pin.Fingerprint != "" && pin.Fingerprint != e.peer.Key.Fingerprint() {
			reason := c.checkRotation(ctx, d, pin, e.peer, now)
			if reason == nil {
				return c.followRotation(ctx, pin, e, fromOwner, now)
			}
			if change == nil {
				change = &offeredKey{e.peer, reason}
			}
			continue
		}
		if e = pin.applyTo(e, now); !e.peer.IsDoubtful() {
			return e, nil
		} else if doubtful == nil {
			doubtful = e
		}
	}
	switch {
	case unreachableErr != nil:
		return nil, unreachableErr
	case change != nil:
		return nil, c.reportKeyChange(ctx, pin, *change, now)
	case doubtful != nil:
		return doubtful, nil
	case unusableErr != nil:
		return nil, unusableErr
	}
	return nil, ErrUnknownAgent
}

// newEntry returns the entry for the answer of a directory. If the card is unchanged, it updates a copy of old.
func (c *Cards) newEntry(d *Directory, f Fetched, old *entry, now time.Time) (*entry, error) {
	if f.NotModified {
		e := *old
		e.fetched, e.asked, e.suspect, e.peer.Until = now, now, false, nextLookup(now, f.MaxAge)
		e.peer.Pinned, e.peer.ownerPin, e.peer.keyPinned = time.Time{}, false, false // until applyTo sets them
		e.peer.EndpointProven = f.EndpointProven
		return &e, nil
	}
	peer, err := c.newPeer(f.Card, c.cfg.HTTP.reachOf(d.Loopback), now)
	if err != nil {
		return nil, err
	}
	peer.Directory, peer.Until, peer.EndpointProven = d.Base, nextLookup(now, f.MaxAge), f.EndpointProven
	return &entry{peer: peer, etag: f.ETag, from: d, fetched: now, asked: now}, nil
}

// orderDirectories returns the directories in the order in which they are asked (AM-86): the directory where the
// agent was pinned comes first. Otherwise somebody could register the id in a directory that is asked earlier.
func (c *Cards) orderDirectories(pinnedAt string) []*Directory {
	i := slices.IndexFunc(c.cfg.Directories, func(d *Directory) bool { return d.Base == pinnedAt })
	if i <= 0 {
		return c.cfg.Directories
	}
	list := slices.Clone(c.cfg.Directories)
	return slices.Insert(slices.Delete(list, i, i+1), 0, c.cfg.Directories[i])
}

// nextLookup returns when a card must be looked up again (AM-45, AM-59). age is how long the directory allows caching
// the card, negative for no limit.
func nextLookup(now time.Time, age time.Duration) time.Time {
	if age < 0 {
		return now.Add(maxFresh)
	}
	return now.Add(min(age, maxFresh))
}

// newPeer checks a card and its key, and converts the card to a [Peer].
func (c *Cards) newPeer(v wire.Value, reach Reach, now time.Time) (Peer, error) {
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

// ownerCard returns the entry for the card that our owner added, or nil if our owner added none.
func (c *Cards) ownerCard(ctx context.Context, id wire.AgentID, pin storedPin, now time.Time) (*entry, error) {
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
	e, err := c.ownerEntry(v, now)
	if err != nil {
		return nil, err
	}
	return pin.applyTo(e, now), nil
}

// ownerEntry returns the entry for a card from our owner.
func (c *Cards) ownerEntry(card wire.Value, now time.Time) (*entry, error) {
	peer, err := c.newPeer(card, c.cfg.HTTP.reachOf(true), now) // true: a card from the owner may name an endpoint on this machine
	if err != nil {
		return nil, err
	}
	peer.Until = now.Add(maxFresh)
	return &entry{peer: peer, fetched: now, asked: now}, nil
}

// offeredKey is a key that a directory lists, but that only the owner can accept.
type offeredKey struct {
	peer   Peer
	reason error // why the pinned key does not vouch for it
}

// KeyChangedError means that the pinned key of an agent does not vouch for its current key. The owner decides.
type KeyChangedError struct {
	KeyChange
	cause error
}

func (e *KeyChangedError) Error() string {
	return fmt.Sprintf("the key of %s changed without a proof by its old key (was %s, is %s)", e.Agent, e.Old, e.New)
}

// Unwrap returns why the new key was not accepted.
func (e *KeyChangedError) Unwrap() error { return e.cause }

// Hint returns what a person can do.
func (e *KeyChangedError) Hint() string {
	return "ask the owner of that agent over another channel, then accept or refuse the new key"
}
