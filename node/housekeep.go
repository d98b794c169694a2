package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsState    = "node" // small state of the node itself
	keyMeter   = "meter"
	keyPaused  = "paused"
	meterEvery = time.Minute // AM-44
	sweepEvery = 10 * time.Minute
)

// restore reads what the node knew when it stopped: whether it was paused, and how much of its limits was spent.
func (n *Node) restore(ctx context.Context) error {
	now := time.Now()
	recs := n.store.Records()
	switch r, err := recs.Get(ctx, nsState, keyMeter, now); {
	case err == nil:
		if err := n.meter.Restore(r.Body, now); err != nil {
			n.log.Warn("limits start full", "err", err)
		}
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	switch r, err := recs.Get(ctx, nsState, keyPaused, now); {
	case err == nil:
		var paused bool
		if err := json.Unmarshal(r.Body, &paused); err != nil {
			return fmt.Errorf("decode paused: %w", err)
		}
		n.paused.Store(paused)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	if err := errors.Join(n.findInterrupted(ctx), n.findTails(ctx)); err != nil {
		return err
	}
	if err := n.auditPolicy(ctx, now); err != nil {
		return err
	}
	return n.registrar.Restore(ctx, now)
}

// SetPaused closes or opens line 5 for every message, durably (AM-86). by is the door that the owner used.
func (n *Node) SetPaused(ctx context.Context, paused bool, by string) error {
	body, err := json.Marshal(paused)
	if err != nil {
		return err
	}
	entry := acl.AuditEntry{At: time.Now(), Kind: acl.AuditResume, By: by}
	if paused {
		entry.Kind = acl.AuditPause
	}
	if err := n.keep(ctx, keyPaused, body, entry.At, n.audit.Change(entry)); err != nil {
		return err
	}
	n.paused.Store(paused)
	n.events.publish(Event{Topic: TopicStatus})
	return nil
}

// Paused says whether the node takes no messages.
func (n *Node) Paused() bool { return n.paused.Load() }

func (n *Node) keep(ctx context.Context, key string, body []byte, now time.Time, more ...store.Change) error {
	change := store.Change{Record: store.Record{NS: nsState, Key: key, Body: body}, IfRev: store.Any}
	return n.store.Records().Apply(ctx, append(more, change), now)
}

// saveMeter stores how much of the limits is spent, unless that is what was stored last: an idle node writes nothing.
func (n *Node) saveMeter(ctx context.Context, now time.Time) error {
	spent := n.meter.Snapshot(now)
	if bytes.Equal(spent, n.savedMeter) {
		return nil
	}
	if err := n.keep(ctx, keyMeter, spent, now); err != nil {
		return err
	}
	n.savedMeter = spent
	return nil
}

// housekeep stores the limits once a minute and reclaims space (AM-44, AM-23).
func (n *Node) housekeep(ctx context.Context) {
	meter := time.NewTicker(meterEvery)
	defer meter.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-meter.C:
			if err := n.saveMeter(ctx, now); err != nil && ctx.Err() == nil {
				n.log.Warn("store limits", "err", err)
			}
			if !n.clock.Reliable() {
				continue
			}
			if err := n.remind(ctx, now); err != nil && ctx.Err() == nil {
				n.log.Warn("remind agents", "err", err)
			}
		case now := <-sweep.C:
			if n.clock.Reliable() { // what is deleted does not come back with the right time
				n.sweep(ctx, now)
			}
		}
	}
}

// sweep drops what has expired, and the oldest conversations that have ended beyond MaxKept and MaxBytes.
func (n *Node) sweep(ctx context.Context, now time.Time) {
	if err := n.clock.Sweep(ctx, n.store); err != nil {
		n.log.Warn("sweep", "err", err)
		return
	}
	n.ends.sooner(now) // a bridge may have asked without our knowing
	if err := n.warn(ctx, now); err != nil {
		n.log.Warn("warn of what expires", "err", err)
	}
	if err := n.trim(ctx, now); err != nil {
		n.log.Warn("trim conversations", "err", err)
	}
}

// settleHeld ends the wait of messages about which the owner can no longer decide (AM-33, AM-75).
func (n *Node) settleHeld(ctx context.Context, now time.Time) error {
	const page = 50 // each may be as large as a message
	for _, state := range []ItemState{ItemHeld, ItemInterrupted} {
		for after := ""; ; {
			items, next, err := n.Inbox(ctx, state, after, page)
			if err != nil {
				return err
			}
			for _, item := range items {
				if err := n.settleOne(ctx, item, now); err != nil {
					return err
				}
			}
			if after = next; after == "" {
				break
			}
		}
	}
	return nil
}

// settleOne ends the wait of an item whose question has expired. A message that the owner has let in, and that only the
// answer to it or another run of its hook waited, is the owner's to answer.
func (n *Node) settleOne(ctx context.Context, item Item, now time.Time) error {
	ask, err := n.asks.Get(ctx, item.Ask, now)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	case err == nil && ask.State != acl.AskExpired:
		return nil
	}
	switch {
	case item.State == ItemInterrupted:
		item.State, item.Note = ItemFailed, "nobody decided in time whether the agent runs again"
	case ask.Kind == askOutgoing, ask.Kind == askTask:
		item.State, item.Note = ItemFailed, "nobody decided in time whether the answer leaves"
	default:
		item.State = ItemExpired
	}
	if err == nil && !ask.Displaced.IsZero() {
		err = n.endHold(ctx, item, ask, now)
	} else {
		err = n.changeItem(ctx, item, nil)
	}
	if isConflict(err) {
		return nil
	}
	return err
}

// endHold ends the wait of an item whose question lost its place before its time: its conversation need not stay open for
// the answer.
func (n *Node) endHold(ctx context.Context, item Item, ask acl.Ask, now time.Time) error {
	return n.book.Try(ctx, item.key(), now, func(u *conversations.Unit) error {
		u.Add(item.change())
		if u.New() {
			return nil
		}
		return u.Record(ctx, conversations.Event{Kind: conversations.HoldEnded, At: now, Until: ask.Expires})
	})
}

// trim bounds the conversations that are kept. They come newest first, so what lies beyond MaxKept and MaxBytes is
// oldest. Open ones stay; while they alone are too many bytes, strangers cannot add to them, so that they end.
func (n *Node) trim(ctx context.Context, now time.Time) error {
	bytes := int64(0)
	open := conversations.Filter{State: conversations.Open}
	if err := n.each(ctx, open, now, func(c conversations.Conversation) error { bytes += c.Bytes; return nil }); err != nil {
		return err
	}
	n.overfull.Store(bytes > n.cfg.MaxBytes)
	kept := 0
	return n.each(ctx, conversations.Filter{}, now, func(c conversations.Conversation) error {
		kept++
		if c.State == conversations.Open {
			return nil
		}
		if bytes += c.Bytes; kept <= n.cfg.MaxKept && bytes <= n.cfg.MaxBytes {
			return nil
		}
		if err := n.forget(ctx, c.Key); err != nil && !isConflict(err) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		return nil
	})
}

// forget removes a conversation with its messages in the inbox, its letters that have ended and what the owner was
// asked in it. What still waits in the outbox leaves all the same.
func (n *Node) forget(ctx context.Context, key store.ConvKey) error {
	return n.book.Do(ctx, key, func(u *conversations.Unit) error {
		u.Delete()
		asks, err := n.asks.Forget(ctx, key, u.Now)
		if err != nil {
			return err
		}
		letters, err := n.endedLetters(ctx, key)
		if err != nil {
			return err
		}
		u.Add(append(asks, letters...)...)
		items, err := n.itemsOf(ctx, key)
		for _, item := range items {
			u.Add(store.Change{Record: store.Record{NS: nsInbox, Key: item.ID}, IfRev: store.Any, Delete: true})
		}
		return err
	})
}

// each calls do for the conversations that f names, newest first.
func (n *Node) each(ctx context.Context, f conversations.Filter, now time.Time, do func(conversations.Conversation) error) error {
	const page = 500
	for before := uint64(0); ; {
		p, err := n.book.List(ctx, f, before, page, now)
		if err != nil {
			return err
		}
		for _, c := range p.Conversations {
			if err := do(c); err != nil {
				return err
			}
		}
		if before = p.Next; before == 0 {
			return nil
		}
	}
}
