package moltspeak

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// How many pins are kept, and how long those of strangers.
const (
	maxChosen    = 10_000
	maxStrangers = 5_000

	forgetEmpty    = 24 * time.Hour // of a stranger who left nothing behind: no conversation, no question to the owner
	forgetStranger = keepThreads    // of any other stranger
	forgetEvery    = time.Hour
	forgetWhenFull = time.Minute
)

// pinned judges a sender's key: that of its pin, else the one it claims, which the caller pins once the signature
// verified (MS-23). No key that only an envelope names is ever looked at (MS-20).
func (b *Bridge) pinned(c *exchange) (peer, *signing.PublicKey, *Error) {
	ctx, from, now := c.ctx, c.m.From, c.now
	p, known, err := b.peer(ctx, from.Name(), now)
	if err != nil {
		return p, nil, fault(CodeInternal).because(err)
	}
	if known && (from.Key != "" && from.Key != p.Key || from.EncKey != "" && p.EncKey != "" && from.EncKey != p.EncKey) {
		return p, nil, b.doubted(ctx, from, p, now)
	}
	text := p.Key
	if !known {
		text = from.Key
		if text == "" { // what others list is all there is to go by
			w, e := b.vouch(c)
			if e != nil {
				return p, nil, e
			}
			text = w.key
		}
		p = peer{Name: from.Name(), Key: text, First: now.UTC(), rev: store.Absent}
	}
	key, ok := parseKey(text)
	if !ok {
		return p, nil, fault(CodeAuthFailed)
	}
	return p, key, nil
}

// doubted refuses another key than the pinned one, and notes it for the owner. Nothing of the message has verified: it
// must not cost a write each time.
func (b *Bridge) doubted(ctx context.Context, from Agent, p peer, now time.Time) *Error {
	b.cfg.Logger.WarnContext(ctx, "moltspeak: a peer shows another key than the pinned one", "peer", from.Name())
	_, first := b.doubts.Take(from.Name(), now)
	if first && b.cfg.Doubt != nil {
		b.cfg.Doubt(ctx, b.address(from))
	}
	if first && p.Refused != from.Key && len(from.Key) <= maxText {
		p.Refused = from.Key
		if err := b.savePeer(ctx, p, now); err != nil && !errors.Is(err, store.ErrConflict) {
			return fault(CodeInternal).because(err)
		}
	}
	return fault(CodeAuthFailed)
}

// parseKey reads a signing key as messages carry it (MS-12).
func parseKey(text string) (*signing.PublicKey, bool) {
	raw, ok := strings.CutPrefix(text, sigPrefix)
	if !ok {
		return nil, false
	}
	key, err := signing.ParseEd25519(raw)
	return key, err == nil
}

// parsePoint reads an encryption key as messages carry it (MS-12).
func parsePoint(text string) (signing.BoxPublic, bool) {
	raw, ok := strings.CutPrefix(text, "x25519:")
	if !ok {
		return signing.BoxPublic{}, false
	}
	point, err := signing.ParseBoxPublic(raw)
	return point, err == nil
}

// pin keeps what a verified message said of its sender, where it is new.
func (b *Bridge) pin(c *exchange) *Error {
	p := c.peer
	if c.m.From.EncKey != "" && p.EncKey == "" {
		if _, ok := parsePoint(c.m.From.EncKey); !ok {
			return faultAt(CodeSchema, "from.enc_key", "is no X25519 key")
		}
		p.EncKey = c.m.From.EncKey
	}
	if where, ok := c.m.Ext.Get("agentmesh.endpoint"); ok {
		if url := where.GetStr("url"); len(url) <= 2048 {
			if _, err := Endpoint(url); err == nil {
				p.Endpoint = url
			}
		}
	}
	if p.Chosen = p.Chosen || c.known(); p.Chosen {
		p.Sources = nil
	} else if len(p.Sources) == 0 {
		p.Sources = c.sources
	}
	p.AllOps = p.AllOps || !c.m.Op.core()
	if c.now.Sub(p.Last) > forgetEmpty/2 { // not a write for each message
		p.Last = c.now.UTC()
	}
	if p.rev != store.Absent && string(encode(p)) == string(encode(c.peer)) {
		return nil
	}
	err := b.savePeer(c.ctx, p, c.now)
	if errors.Is(err, store.ErrQuota) && b.forgetDue(c.now, forgetWhenFull) {
		if err = b.forgetStrangers(c.ctx, c.now); err == nil {
			err = b.savePeer(c.ctx, p, c.now)
		}
	}
	if errors.Is(err, store.ErrQuota) {
		err = b.pinPlaces.displace(c.ctx, b, p, c.now)
	}
	switch {
	case errors.Is(err, store.ErrQuota):
		return fault(CodeRateLimit).because(err)
	case err != nil && !errors.Is(err, store.ErrConflict):
		return fault(CodeInternal).because(err)
	}
	again, known, readErr := b.peer(c.ctx, p.Name, c.now) // where somebody was first: judge anew
	switch {
	case readErr != nil:
		return fault(CodeInternal).because(readErr)
	case !known || again.Key != p.Key:
		return fault(CodeAuthFailed).because(err)
	}
	c.peer = again
	return nil
}

// keepHouse looks through the pins now and then until ctx ends.
func (b *Bridge) keepHouse(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for now := time.Now(); ; {
		if b.forgetDue(now, forgetWhenFull) {
			if err := b.forgetStrangers(ctx, now); err != nil && ctx.Err() == nil {
				b.cfg.Logger.WarnContext(ctx, "moltspeak: forget strangers", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case now = <-tick.C:
		}
	}
}

// forgetDue reports whether nobody looked through the pins for that long, and lets one caller do it. While the clock is in
// doubt nobody is forgotten.
func (b *Bridge) forgetDue(now time.Time, after time.Duration) bool {
	last := b.pinPlaces.swept.Load()
	since := now.Sub(time.Unix(last, 0)).Abs() // the clock may have been set back
	return since >= after && b.clock.Believed() && b.pinPlaces.swept.CompareAndSwap(last, now.Unix())
}

// forgetStrangers drops the pins of strangers who left nothing behind a day ago, or wrote nothing for as long as a
// conversation lives. Who the owner has let in meanwhile is no stranger: its pin stays, or another could take its name
// and with it what the owner allowed.
func (b *Bridge) forgetStrangers(ctx context.Context, now time.Time) error {
	for after := ""; ; {
		page, err := b.records.List(ctx, nsPeers, "stranger", after, 500, now)
		if err != nil {
			return err
		}
		var changes []store.Change
		for _, rec := range page.Records {
			p := peer{rev: rec.Rev}
			if err := json.Unmarshal(rec.Body, &p); err != nil {
				return err
			}
			change, err := b.review(ctx, p, now)
			if err != nil {
				return err
			}
			if change != nil {
				changes = append(changes, *change)
			}
		}
		if err := b.applyEach(ctx, changes, now); err != nil {
			return err
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// applyEach applies changes that do not hang together: at once or, where one of them came too late, one by one.
func (b *Bridge) applyEach(ctx context.Context, changes []store.Change, now time.Time) error {
	late := func(err error) bool { return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrQuota) }
	if len(changes) == 0 {
		return nil
	}
	err := b.records.Apply(ctx, changes, now)
	if !late(err) {
		return err
	}
	for _, change := range changes {
		if err := b.records.Apply(ctx, []store.Change{change}, now); err != nil && !late(err) {
			return err
		}
	}
	return nil
}

// review says what becomes of the pin of a stranger; nil: it stays.
func (b *Bridge) review(ctx context.Context, p peer, now time.Time) (*store.Change, error) {
	name, ok := ParseName(p.Name)
	if !ok {
		return nil, nil
	}
	address := b.address(name)
	standing, err := b.cfg.Rules.Standing(ctx, address.String(), now)
	if err != nil {
		return nil, err
	}
	if standing.Known() || address.Link != InboundLink {
		p.Chosen = true
		return new(p.change()), nil
	}
	silent := now.Sub(p.Last)
	if silent < forgetEmpty {
		return nil, nil
	}
	if silent < forgetStranger {
		if began, err := beganConversation(ctx, b.records, address, now); err != nil || began {
			return nil, err
		}
		asks, _, err := b.cfg.Asks.List(ctx, acl.AskFilter{Subject: address.String()}, "", 1, now)
		if err != nil || len(asks) > 0 {
			return nil, err
		}
	}
	return &store.Change{IfRev: p.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: p.Name}}, nil
}

// beganConversation reports whether a stranger has a conversation with us.
func beganConversation(ctx context.Context, records store.Records, address bridge.Address, now time.Time) (bool, error) {
	threads, err := records.List(ctx, nsThreads, hash(address.String()), "", 1, now)
	return len(threads.Records) > 0, err
}

// pinCrowdFor is how long a count of the pins is used, because counting reads all of them.
const pinCrowdFor = time.Second

// pinPlaces tells who has the pins of strangers while all are taken.
type pinPlaces struct {
	swept atomic.Int64 // when the pins of strangers were looked through last, in Unix seconds

	mu    sync.Mutex
	at    time.Time
	crowd *rate.Crowd[pinPlace]
}

type pinPlace struct {
	name string
	rev  store.Rev
}

// displace stores the pin of a stranger in the place of another one whose source has more (AM-42): the newest pin of
// that source goes, one with a conversation after the others, and never one that the owner is asked about. It is
// store.ErrQuota if no pin may go.
func (places *pinPlaces) displace(ctx context.Context, b *Bridge, p peer, now time.Time) error {
	places.mu.Lock()
	defer places.mu.Unlock()
	if places.crowd == nil || now.Sub(places.at).Abs() >= pinCrowdFor {
		if err := places.count(ctx, b, now); err != nil {
			return err
		}
	}
	victim, err := places.victim(ctx, b, p, now)
	if err != nil {
		return err
	}
	gone := store.Change{IfRev: victim.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: victim.name}}
	if err := b.records.Apply(ctx, []store.Change{gone, p.change()}, now); err != nil {
		places.crowd = nil // the pin may have changed since it was counted
		if errors.Is(err, store.ErrConflict) {
			return errors.Join(store.ErrQuota, err)
		}
		return err
	}
	places.crowd.Remove(victim)
	return nil
}

// count counts the pins of strangers, oldest first. The caller holds the lock.
func (places *pinPlaces) count(ctx context.Context, b *Bridge, now time.Time) error {
	var all []peer
	for after := ""; ; {
		page, err := b.records.List(ctx, nsPeers, "stranger", after, 500, now)
		if err != nil {
			return err
		}
		for _, rec := range page.Records {
			p := peer{rev: rec.Rev}
			if err := json.Unmarshal(rec.Body, &p); err != nil {
				return err
			}
			all = append(all, p)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	slices.SortFunc(all, func(x, y peer) int { return cmp.Or(x.First.Compare(y.First), cmp.Compare(x.Name, y.Name)) })
	crowd := new(rate.Crowd[pinPlace])
	for _, p := range all {
		crowd.Add(rate.Place[pinPlace]{Key: pinPlace{p.Name, p.rev}, Sources: p.Sources})
	}
	places.crowd, places.at = crowd, now
	return nil
}

// victim returns the pin that p may displace. The caller holds the lock.
func (places *pinPlaces) victim(ctx context.Context, b *Bridge, p peer, now time.Time) (pinPlace, error) {
	crowd, postponed := places.crowd, make(map[pinPlace]bool)
	for {
		victim, ok := crowd.Victim(p.Sources, 1)
		name, _ := ParseName(victim.name)
		if !ok {
			return victim, store.ErrQuota
		}
		address := b.address(name)
		asked, _, err := b.cfg.Asks.List(ctx, acl.AskFilter{Subject: address.String(), State: acl.AskPending}, "", 100, now)
		if err != nil {
			return victim, err
		}
		if len(asked) > 0 {
			crowd.Remove(victim)
			continue
		}
		began, err := beganConversation(ctx, b.records, address, now)
		if err != nil || !began || postponed[victim] {
			return victim, err
		}
		crowd.Postpone(victim)
		postponed[victim] = true
	}
}
