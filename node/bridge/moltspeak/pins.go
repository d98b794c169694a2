package moltspeak

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// The maximum numbers of pins, and the times after which pins of strangers are deleted.
const (
	maxChosen    = 10_000 // pins of peers that we called, or about which the owner decided
	maxStrangers = 5_000

	forgetEmpty    = 24 * time.Hour    // of silence, if a stranger has no conversation and no question to the owner
	forgetStranger = keepConversations // of silence, for any other stranger
	forgetEvery    = time.Hour         // between two looks at a pin that is old enough
)

// pins stores a record for each peer, with the pinned key and everything else that we know about the peer.
type pins struct {
	records    store.Records
	links      *links
	mesh       bridge.Mesh
	listed     *listedKeys
	log        *slog.Logger
	notices    *rate.Buckets                                     // limits how often we report that a pinned peer used another key
	onOtherKey func(ctx context.Context, address bridge.Address) // nil: only log

	mu     sync.Mutex
	madeAt time.Time                 // the time at which table was made
	table  *rate.FairTable[pinEntry] // the pins of strangers; made only while all places for them are taken
}

func newPins(cfg Config, links *links, listed *listedKeys) *pins {
	return &pins{
		records: cfg.Store.Records(), links: links, mesh: cfg.Mesh, listed: listed,
		log: cfg.Logger, notices: rate.NewBuckets(rate.PerHour(1), 1, maxTracked), onOtherKey: cfg.OnOtherKey,
	}
}

func (pins *pins) get(ctx context.Context, name string, now time.Time) (peer, bool, error) {
	var p peer
	rev, ok, err := store.ReadRecord(ctx, pins.records, nsPeers, name, &p, now)
	p.rev = rev
	return p, ok, err
}

func (pins *pins) save(ctx context.Context, p peer, now time.Time) error {
	return pins.records.Apply(ctx, []store.Change{p.change()}, now)
}

// address returns the address of a peer: on the link that names the peer, or else on [InboundLink].
func (pins *pins) address(a message.Agent) bridge.Address {
	out := bridge.Address{Kind: Kind, Link: InboundLink, Peer: a.Name()}
	for _, l := range pins.links.All() {
		if l.Options["peer"] == a.Name() {
			out.Link = l.Name
		}
	}
	return out
}

// findSender returns what we know about the sender, and the key with which its signature must verify: the pinned key,
// or else the key that the sender claims, or else the key that is listed for its name (MS-23). A new key is pinned
// later, by update. findSender ignores a key that the envelope around a message names (MS-20).
func (pins *pins) findSender(c *request) (peer, *signing.PublicKey, *message.Error) {
	ctx, from, now := c.ctx, c.m.From, c.now
	p, known, err := pins.get(ctx, from.Name(), now)
	if err != nil {
		return p, nil, message.Fail(message.CodeInternal).Because(err)
	}
	otherKey := from.Key != "" && from.Key != p.Key
	otherEncKey := from.EncKey != "" && p.EncKey != "" && from.EncKey != p.EncKey
	if known && (otherKey || otherEncKey) {
		return p, nil, pins.refuseKey(ctx, from, p, now)
	}
	text := p.Key
	if !known {
		text = from.Key
		if text == "" { // the sender claims no key, so only a listed key can be used
			found, e := pins.listed.lookup(c)
			if e != nil {
				return p, nil, e
			}
			text = found.key
		}
		p = peer{Name: from.Name(), Key: text, First: now.UTC(), rev: store.Absent}
	}
	key, ok := message.ParseKey(text)
	if !ok {
		return p, nil, message.Fail(message.CodeAuthFailed)
	}
	return p, key, nil
}

// refuseKey refuses a key other than the pinned one. It also stores the key and notifies the owner, but at most once an
// hour for each peer.
func (pins *pins) refuseKey(ctx context.Context, from message.Agent, p peer, now time.Time) *message.Error {
	pins.log.WarnContext(ctx, "moltspeak: a peer used a key other than the pinned one", "peer", from.Name())
	_, notify := pins.notices.Take(from.Name(), now)
	if notify && pins.onOtherKey != nil {
		pins.onOtherKey(ctx, pins.address(from))
	}
	refusedKey := from.Key
	if refusedKey == "" || refusedKey == p.Key { // then the encryption key differs
		refusedKey = from.EncKey
	}
	if notify && p.Refused != refusedKey && len(refusedKey) <= message.MaxText {
		p.Refused = refusedKey
		if err := pins.save(ctx, p, now); err != nil && !errors.Is(err, store.ErrConflict) {
			return message.Fail(message.CodeInternal).Because(err)
		}
	}
	return message.Fail(message.CodeAuthFailed)
}

// update pins the key of a new sender, and stores what a verified message says about its sender. It stores nothing if
// the record has all of that already.
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
			if _, err := message.Endpoint(url); err == nil {
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
	if c.now.Sub(p.Last) > forgetEmpty/2 { // not at each message, to avoid writes; so Last may be 12 h too early
		p.Last = c.now.UTC()
	}
	if p.rev != store.Absent && string(wire.MustMarshal(p)) == string(wire.MustMarshal(c.peer)) {
		return nil
	}
	err := pins.save(c.ctx, p, c.now)
	if errors.Is(err, store.ErrQuota) {
		err = pins.displace(c.ctx, p, c.now)
	}
	switch {
	case errors.Is(err, store.ErrQuota):
		return message.Fail(message.CodeRateLimit).Because(err)
	case err != nil && !errors.Is(err, store.ErrConflict):
		return message.Fail(message.CodeInternal).Because(err)
	}
	stored, known, readErr := pins.get(c.ctx, p.Name, c.now) // another message may have pinned a key meanwhile
	switch {
	case readErr != nil:
		return message.Fail(message.CodeInternal).Because(readErr)
	case !known || stored.Key != p.Key:
		return message.Fail(message.CodeAuthFailed).Because(err)
	}
	c.peer = stored
	return nil
}

func (pins *pins) list(ctx context.Context) ([]PeerView, error) {
	out := []PeerView{}
	for p, err := range store.DecodeAll(ctx, pins.records, nsPeers, "", time.Now(), decodePeer) {
		if err != nil {
			return nil, err
		}
		a, _ := message.ParseName(p.Name)
		out = append(out, PeerView{
			Name: p.Name, Address: pins.address(a).String(), Key: p.Key, EncKey: p.EncKey, First: p.First, Endpoint: p.Endpoint,
			Vouched: p.Vouched, GrantedPII: p.GrantedPII, Refused: p.Refused,
		})
	}
	return out, nil
}

// setGranted accepts personal data from a peer, or no longer accepts it (MS-28).
func (pins *pins) setGranted(ctx context.Context, name string, granted bool) error {
	now := time.Now()
	p, known, err := pins.get(ctx, name, now)
	if err != nil || !known {
		return cmp.Or(err, store.ErrNotFound)
	}
	p.GrantedPII, p.Chosen = granted, true
	return pins.save(ctx, p, now)
}

// workStranger deletes the pin of a stranger that has been silent for forgetStranger, or only for forgetEmpty if it has
// no conversation and no question to the owner. A peer that the owner admitted meanwhile is not a stranger: its pin
// stays, because otherwise another agent could take its name and with it the owner's permission.
func (pins *pins) workStranger(ctx context.Context, rec store.Record, now time.Time) (work.Later, error) {
	p, err := decodePeer(rec)
	if err != nil {
		return work.Later{}, err
	}
	change, err := pins.review(ctx, p, now)
	if err == nil && change != nil {
		err = pins.records.Apply(ctx, []store.Change{*change}, now)
	}
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrQuota) {
		err = nil
	}
	return work.Later{Pause: forgetEvery}, err
}

// review returns the change that deletes the pin of a stranger or sets the pin's field Chosen, or nil if the pin
// stays unchanged.
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
		if exists, err := hasConversation(ctx, pins.records, address, now); err != nil || exists {
			return nil, err
		}
		asks, _, err := pins.mesh.Asks().List(ctx, acl.AskFilter{Subject: address.String()}, "", 1, now)
		if err != nil || len(asks) > 0 {
			return nil, err
		}
	}
	return &store.Change{IfRev: p.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: p.Name}}, nil
}

// hasConversation reports whether a conversation with the peer at address is stored.
func hasConversation(ctx context.Context, records store.Records, address bridge.Address, now time.Time) (bool, error) {
	threads, err := records.List(ctx, nsConversations, wire.HashOf(address.String()), "", 1, now)
	return len(threads.Records) > 0, err
}

// tableLife is how long pins.table is used. Making it is expensive, because it needs all pins of strangers.
const tableLife = time.Second

// pinEntry identifies a pin in pins.table.
type pinEntry struct {
	name string
	rev  store.Rev
}

// displace stores the pin of a stranger in place of the newest pin of another source that holds more pins than
// the sources of p (AM-42). Pins of
// peers with a conversation are displaced last. Pins of peers about which a question waits for the owner are never
// displaced. If no pin may be displaced, displace fails with store.ErrQuota.
func (pins *pins) displace(ctx context.Context, p peer, now time.Time) error {
	pins.mu.Lock()
	defer pins.mu.Unlock()
	if pins.table == nil || now.Sub(pins.madeAt).Abs() >= tableLife {
		if err := pins.makeTable(ctx, now); err != nil {
			return err
		}
	}
	displaced, err := pins.findDisplaceable(ctx, p, now)
	if err != nil {
		return err
	}
	deletion := store.Change{IfRev: displaced.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: displaced.name}}
	if err := pins.records.Apply(ctx, []store.Change{deletion, p.change()}, now); err != nil {
		pins.table = nil // the pin may have changed since the table was made
		if errors.Is(err, store.ErrConflict) {
			return errors.Join(store.ErrQuota, err)
		}
		return err
	}
	pins.table.Remove(displaced)
	return nil
}

// makeTable makes pins.table from the pins of strangers, oldest first. The caller holds pins.mu.
func (pins *pins) makeTable(ctx context.Context, now time.Time) error {
	var all []peer
	for p, err := range store.DecodeAll(ctx, pins.records, nsPeers, termStranger, now, decodePeer) {
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(x, y peer) int { return cmp.Or(x.First.Compare(y.First), cmp.Compare(x.Name, y.Name)) })
	table := new(rate.FairTable[pinEntry])
	for _, p := range all {
		table.Add(rate.Entry[pinEntry]{Key: pinEntry{p.Name, p.rev}, Sources: p.Sources})
	}
	pins.table, pins.madeAt = table, now
	return nil
}

// findDisplaceable returns the pin that p may displace. The caller holds pins.mu.
func (pins *pins) findDisplaceable(ctx context.Context, p peer, now time.Time) (pinEntry, error) {
	table, postponed := pins.table, make(map[pinEntry]bool)
	for {
		displaced, ok := table.FindDisplaceable(p.Sources)
		name, _ := message.ParseName(displaced.name)
		if !ok {
			return displaced, store.ErrQuota
		}
		address := pins.address(name)
		asks, _, err := pins.mesh.Asks().List(ctx, acl.AskFilter{Subject: address.String(), State: acl.AskPending}, "", 100, now)
		if err != nil {
			return displaced, err
		}
		if len(asks) > 0 {
			table.Remove(displaced)
			continue
		}
		exists, err := hasConversation(ctx, pins.records, address, now)
		if err != nil || !exists || postponed[displaced] {
			return displaced, err
		}
		table.Postpone(displaced)
		postponed[displaced] = true
	}
}
