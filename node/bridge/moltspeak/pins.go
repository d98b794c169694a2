package moltspeak

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// How many pins are stored, and for how long those of strangers.
const (
	maxChosen    = 10_000
	maxStrangers = 5_000

	forgetEmpty    = 24 * time.Hour    // of a stranger without a conversation and without a question to the owner
	forgetStranger = keepConversations // of any other stranger
	forgetEvery    = time.Hour
	forgetWhenFull = time.Minute
)

// pins are the pinned keys of peers, with what else is stored about each peer.
type pins struct {
	records    store.Records
	links      []bridge.Link
	mesh       bridge.Mesh
	listed     *listedKeys
	clock      *store.WallClock
	log        *slog.Logger
	notices    *rate.Buckets                                     // bounds the notices about other keys of pinned peers
	onOtherKey func(ctx context.Context, address bridge.Address) // nil: only log
	swept      atomic.Int64                                      // time of the last sweep, in Unix seconds

	mu    sync.Mutex
	at    time.Time // when the pins of strangers were last counted; that happens only while all places are taken
	crowd *rate.Crowd[pinPlace]
}

func newPins(cfg Config, listed *listedKeys) *pins {
	return &pins{
		records: cfg.Store.Records(), links: cfg.Links, mesh: cfg.Mesh, listed: listed, clock: store.NewWallClock(cfg.Logger),
		log: cfg.Logger, notices: rate.NewBuckets(rate.PerHour(1), 1, tracked), onOtherKey: cfg.OnOtherKey,
	}
}

// get returns the pin of a name.
func (pins *pins) get(ctx context.Context, name string, now time.Time) (peer, bool, error) {
	var p peer
	rev, ok, err := readRecord(ctx, pins.records, nsPeers, name, &p, now)
	p.rev = rev
	return p, ok, err
}

func (pins *pins) save(ctx context.Context, p peer, now time.Time) error {
	return pins.records.Apply(ctx, []store.Change{p.change()}, now)
}

// address returns the address of a peer: behind the link that names it, or else without a link (§10).
func (pins *pins) address(a message.Agent) bridge.Address {
	out := bridge.Address{Kind: Kind, Link: InboundLink, Peer: a.Name()}
	for _, l := range pins.links {
		if l.Options["peer"] == a.Name() {
			out.Link = l.Name
		}
	}
	return out
}

// check finds the key of a sender: the pinned key, or else the claimed key, which the caller pins after the signature
// verified (MS-23). It never uses a key that only an envelope names (MS-20).
func (pins *pins) check(c *request) (peer, *signing.PublicKey, *message.Error) {
	ctx, from, now := c.ctx, c.m.From, c.now
	p, known, err := pins.get(ctx, from.Name(), now)
	if err != nil {
		return p, nil, message.Fail(message.CodeInternal).Because(err)
	}
	if known && (from.Key != "" && from.Key != p.Key || from.EncKey != "" && p.EncKey != "" && from.EncKey != p.EncKey) {
		return p, nil, pins.refuseKey(ctx, from, p, now)
	}
	text := p.Key
	if !known {
		text = from.Key
		if text == "" { // without a claim, only listed keys can tell
			w, e := pins.listed.lookup(c)
			if e != nil {
				return p, nil, e
			}
			text = w.key
		}
		p = peer{Name: from.Name(), Key: text, First: now.UTC(), rev: store.Absent}
	}
	key, ok := message.ParseKey(text)
	if !ok {
		return p, nil, message.Fail(message.CodeAuthFailed)
	}
	return p, key, nil
}

// refuseKey refuses a key other than the pinned one and notifies the owner. It must not cost a write each time.
func (pins *pins) refuseKey(ctx context.Context, from message.Agent, p peer, now time.Time) *message.Error {
	pins.log.WarnContext(ctx, "moltspeak: a peer shows another key than the pinned one", "peer", from.Name())
	_, first := pins.notices.Take(from.Name(), now)
	if first && pins.onOtherKey != nil {
		pins.onOtherKey(ctx, pins.address(from))
	}
	if first && p.Refused != from.Key && len(from.Key) <= message.MaxText {
		p.Refused = from.Key
		if err := pins.save(ctx, p, now); err != nil && !errors.Is(err, store.ErrConflict) {
			return message.Fail(message.CodeInternal).Because(err)
		}
	}
	return message.Fail(message.CodeAuthFailed)
}

// update stores what a verified message says about its sender, if it is new.
func (pins *pins) update(c *request) *message.Error {
	p := c.peer
	if c.m.From.EncKey != "" && p.EncKey == "" {
		if _, ok := message.ParsePoint(c.m.From.EncKey); !ok {
			return message.FailAt(message.CodeSchema, "from.enc_key", "is not an X25519 key")
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
	if p.Chosen = p.Chosen || c.isKnown(); p.Chosen {
		p.Sources = nil
	} else if len(p.Sources) == 0 {
		p.Sources = c.sources
	}
	p.AllOps = p.AllOps || !c.m.Op.IsCore()
	if c.now.Sub(p.Last) > forgetEmpty/2 { // to avoid a write for each message
		p.Last = c.now.UTC()
	}
	if p.rev != store.Absent && string(encode(p)) == string(encode(c.peer)) {
		return nil
	}
	err := pins.save(c.ctx, p, c.now)
	if errors.Is(err, store.ErrQuota) && pins.isDue(c.now, forgetWhenFull) {
		if err = pins.forgetStrangers(c.ctx, c.now); err == nil {
			err = pins.save(c.ctx, p, c.now)
		}
	}
	if errors.Is(err, store.ErrQuota) {
		err = pins.displace(c.ctx, p, c.now)
	}
	switch {
	case errors.Is(err, store.ErrQuota):
		return message.Fail(message.CodeRateLimit).Because(err)
	case err != nil && !errors.Is(err, store.ErrConflict):
		return message.Fail(message.CodeInternal).Because(err)
	}
	again, known, readErr := pins.get(c.ctx, p.Name, c.now) // another message may have been first
	switch {
	case readErr != nil:
		return message.Fail(message.CodeInternal).Because(readErr)
	case !known || again.Key != p.Key:
		return message.Fail(message.CodeAuthFailed).Because(err)
	}
	c.peer = again
	return nil
}

// run sweeps the pins now and then until ctx ends.
func (pins *pins) run(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for now := time.Now(); ; {
		if pins.isDue(now, forgetWhenFull) {
			if err := pins.forgetStrangers(ctx, now); err != nil && ctx.Err() == nil {
				pins.log.WarnContext(ctx, "moltspeak: forget strangers", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case now = <-tick.C:
		}
	}
}

// isDue reports whether a sweep is due, and lets only one caller do it. While the clock is in doubt, no sweep is due.
func (pins *pins) isDue(now time.Time, after time.Duration) bool {
	last := pins.swept.Load()
	since := now.Sub(time.Unix(last, 0)).Abs() // absolute, because the clock may have been set back
	return since >= after && pins.clock.Reliable() && pins.swept.CompareAndSwap(last, now.Unix())
}

// forgetStrangers deletes the pins of strangers that left nothing behind a day ago, or wrote nothing for as long as a
// conversation lives. A peer that the owner admitted meanwhile is not a stranger. Its pin stays, because otherwise
// another agent could take its name and with it the owner's permission.
func (pins *pins) forgetStrangers(ctx context.Context, now time.Time) error {
	for after := ""; ; {
		page, err := pins.records.List(ctx, nsPeers, "stranger", after, 500, now)
		if err != nil {
			return err
		}
		var changes []store.Change
		for _, rec := range page.Records {
			p := peer{rev: rec.Rev}
			if err := json.Unmarshal(rec.Body, &p); err != nil {
				return err
			}
			change, err := pins.review(ctx, p, now)
			if err != nil {
				return err
			}
			if change != nil {
				changes = append(changes, *change)
			}
		}
		if err := pins.applyEach(ctx, changes, now); err != nil {
			return err
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// applyEach applies independent changes: all at once or, if one of them fails because it is outdated, one by one.
func (pins *pins) applyEach(ctx context.Context, changes []store.Change, now time.Time) error {
	late := func(err error) bool { return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrQuota) }
	if len(changes) == 0 {
		return nil
	}
	err := pins.records.Apply(ctx, changes, now)
	if !late(err) {
		return err
	}
	for _, change := range changes {
		if err := pins.records.Apply(ctx, []store.Change{change}, now); err != nil && !late(err) {
			return err
		}
	}
	return nil
}

// review returns the change to the pin of a stranger, or nil if it stays.
func (pins *pins) review(ctx context.Context, p peer, now time.Time) (*store.Change, error) {
	name, ok := message.ParseName(p.Name)
	if !ok {
		return nil, nil
	}
	address := pins.address(name)
	standing, err := pins.mesh.Standing(ctx, address.String(), now)
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
		if began, err := beganConversation(ctx, pins.records, address, now); err != nil || began {
			return nil, err
		}
		asks, _, err := pins.mesh.Asks().List(ctx, acl.AskFilter{Subject: address.String()}, "", 1, now)
		if err != nil || len(asks) > 0 {
			return nil, err
		}
	}
	return &store.Change{IfRev: p.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: p.Name}}, nil
}

// beganConversation reports whether a stranger has a conversation with us.
func beganConversation(ctx context.Context, records store.Records, address bridge.Address, now time.Time) (bool, error) {
	threads, err := records.List(ctx, nsConversations, hash(address.String()), "", 1, now)
	return len(threads.Records) > 0, err
}

// pinCrowdFor is how long a count of the pins is used, because counting reads all of them.
const pinCrowdFor = time.Second

type pinPlace struct {
	name string
	rev  store.Rev
}

// displace stores the pin of a stranger in place of another stranger's pin whose source has more (AM-42). The newest
// pin of that source goes; pins with a conversation go last; pins that the owner is asked about never go. It fails
// with store.ErrQuota if no pin may go.
func (pins *pins) displace(ctx context.Context, p peer, now time.Time) error {
	pins.mu.Lock()
	defer pins.mu.Unlock()
	if pins.crowd == nil || now.Sub(pins.at).Abs() >= pinCrowdFor {
		if err := pins.count(ctx, now); err != nil {
			return err
		}
	}
	victim, err := pins.victim(ctx, p, now)
	if err != nil {
		return err
	}
	gone := store.Change{IfRev: victim.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: victim.name}}
	if err := pins.records.Apply(ctx, []store.Change{gone, p.change()}, now); err != nil {
		pins.crowd = nil // the pin may have changed since it was counted
		if errors.Is(err, store.ErrConflict) {
			return errors.Join(store.ErrQuota, err)
		}
		return err
	}
	pins.crowd.Remove(victim)
	return nil
}

// count counts the pins of strangers, oldest first. The caller holds pins.mu.
func (pins *pins) count(ctx context.Context, now time.Time) error {
	var all []peer
	for rec, err := range store.AllRecords(ctx, pins.records, nsPeers, "stranger", now) {
		p := peer{rev: rec.Rev}
		if err == nil {
			err = json.Unmarshal(rec.Body, &p)
		}
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(x, y peer) int { return cmp.Or(x.First.Compare(y.First), cmp.Compare(x.Name, y.Name)) })
	crowd := new(rate.Crowd[pinPlace])
	for _, p := range all {
		crowd.Add(rate.Place[pinPlace]{Key: pinPlace{p.Name, p.rev}, Sources: p.Sources})
	}
	pins.crowd, pins.at = crowd, now
	return nil
}

// victim returns the pin that p may displace. The caller holds pins.mu.
func (pins *pins) victim(ctx context.Context, p peer, now time.Time) (pinPlace, error) {
	crowd, postponed := pins.crowd, make(map[pinPlace]bool)
	for {
		victim, ok := crowd.Victim(p.Sources, 1)
		name, _ := message.ParseName(victim.name)
		if !ok {
			return victim, store.ErrQuota
		}
		address := pins.address(name)
		asked, _, err := pins.mesh.Asks().List(ctx, acl.AskFilter{Subject: address.String(), State: acl.AskPending}, "", 100, now)
		if err != nil {
			return victim, err
		}
		if len(asked) > 0 {
			crowd.Remove(victim)
			continue
		}
		began, err := beganConversation(ctx, pins.records, address, now)
		if err != nil || !began || postponed[victim] {
			return victim, err
		}
		crowd.Postpone(victim)
		postponed[victim] = true
	}
}
