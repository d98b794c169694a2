package link

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsPeers      = "agentrelay/peers"
	maxPeersSeen = 10_000
	maxPeersKept = 1000
	maxPinned    = 500  // of them by what peers said themselves: the owner finds room
	maxHints     = 2500 // of a generation: the one before it is known too
	keepHint     = 24 * time.Hour
	maxSkills    = 32
	keepTries    = 16
	storeTimeout = 10 * time.Second
)

// Peer is what the owner decided, or a peer said first, about an agent behind a link.
type Peer struct {
	Peer      string       `json:"peer"`
	Agent     wire.AgentID `json:"agent_id,omitempty"`      // whom the tunnel reaches there; the owner says so
	Recipient string       `json:"age_recipient,omitempty"` // what is encrypted to
	ByOwner   bool         `json:"by_owner,omitempty"`      // the key comes from the owner, not from a discovery
	Pending   string       `json:"pending_recipient,omitempty"`

	rev store.Rev // that was read; store.Absent if there is none yet
}

// hint is what a peer said of itself: unsigned, and never registered anywhere.
type hint struct {
	Skills []string
	At     time.Time
	Key    string // the first that it announced while there was no place to keep it
}

// peers are the agents behind a link: those that it saw, what they said of themselves lately, and, stored, whom the tunnel
// reaches and what is encrypted to.
type peers struct {
	talks talks
	log   *slog.Logger

	mu   sync.Mutex
	seen map[string]bool
	// The latest of what peers said of themselves. Strangers who say something without end push out what others said long
	// ago, never what somebody says now.
	now, before map[string]hint
}

// meet notes a peer, for the count of the status.
func (p *peers) meet(peer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) < maxPeersSeen {
		p.seen[peer] = true
	}
}

func (p *peers) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.seen)
}

// hint returns what a peer said within a day. p.mu is held.
func (p *peers) hint(peer string) hint {
	for _, known := range []map[string]hint{p.now, p.before} {
		if h, ok := known[peer]; ok && time.Since(h.At) < keepHint {
			return h
		}
	}
	return hint{}
}

// setHint remembers what a peer said. p.mu is held.
func (p *peers) setHint(peer string, h hint) {
	if _, known := p.now[peer]; !known && len(p.now) >= maxHints || p.now == nil {
		p.before, p.now = p.now, make(map[string]hint)
	}
	p.now[peer] = h
}

// discover remembers a discovery for a day, and pins the key that came first with one (AR-49).
func (p *peers) discover(h *heard) {
	skills, _ := h.payload.Get("skills")
	list, ok := frame.Keywords(skills)
	if !ok {
		list = nil
	}
	p.mu.Lock()
	p.setHint(h.from, hint{list[:min(len(list), maxSkills)], time.Now(), p.hint(h.from).Key})
	p.mu.Unlock()
	if recipient := h.payload.GetStr("age_recipient"); recipient != "" {
		p.pin(h.from, recipient)
	}
}

func (p *peers) key(peer string) string { return p.talks.link + "/" + peer }

// get returns what is kept of a peer.
func (p *peers) get(ctx context.Context, id string) (Peer, error) {
	peer := Peer{Peer: id}
	rec, err := p.talks.records.Get(ctx, nsPeers, p.key(id), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return peer, nil
	}
	if err == nil {
		peer.rev, err = rec.Rev, json.Unmarshal(rec.Body, &peer)
	}
	return peer, err
}

// all returns the kept peers by id.
func (p *peers) all(ctx context.Context) (map[string]Peer, error) {
	page, err := p.talks.records.List(ctx, nsPeers, "link:"+p.talks.link, "", maxPeersKept, time.Now())
	if err != nil {
		return nil, err
	}
	out := make(map[string]Peer)
	for _, rec := range page.Records {
		peer := Peer{rev: rec.Rev}
		if err := json.Unmarshal(rec.Body, &peer); err != nil {
			return nil, err
		}
		out[peer.Peer] = peer
	}
	return out, nil
}

// change reads a peer, changes it and keeps it. If somebody else changed it meanwhile, it begins again. edit reports
// whether there is anything to keep.
func (p *peers) change(ctx context.Context, id string, edit func(*Peer) bool) (peer Peer, err error) {
	for range keepTries {
		if peer, err = p.get(ctx, id); err != nil || !edit(&peer) {
			return peer, err
		}
		if err = p.keep(ctx, peer); !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	return peer, err
}

// keep writes a peer that nobody changed since it was read.
func (p *peers) keep(ctx context.Context, peer Peer) error {
	room := maxPeersKept
	if peer.Agent == "" && !peer.ByOwner {
		room = maxPinned
	}
	return p.talks.records.Apply(ctx, []store.Change{{Record: p.record(peer), IfRev: peer.rev, Max: room}}, time.Now())
}

// record returns the row of a peer.
func (p *peers) record(peer Peer) store.Record {
	body, _ := json.Marshal(peer) // strings and a boolean always encode
	terms := []string{"link:" + p.talks.link}
	if peer.Agent != "" {
		terms = append(terms, "agent:"+string(peer.Agent))
	}
	return store.Record{NS: nsPeers, Key: p.key(peer.Peer), Body: body, Terms: terms}
}

// pin keeps the key of a peer's first discovery. Another one later is shown to the owner and not used, and none after
// that until the owner has decided (AR-49): a peer that changes its mind with every frame costs nothing. While there is
// no place for the key, it is only remembered.
func (p *peers) pin(id, recipient string) {
	if len(recipient) > 256 || !signing.ValidAgeRecipient(recipient) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	another := false
	_, err := p.change(ctx, id, func(peer *Peer) bool {
		another = false
		switch {
		case peer.Recipient == recipient || peer.Pending != "":
			return false
		case peer.Recipient == "":
			peer.Recipient = recipient
		default:
			peer.Pending, another = recipient, true
		}
		return true
	})
	if another {
		p.log.Warn("a peer says that it has another key; agentmesh agentrelay peer takes it", "peer", id)
	}
	switch {
	case errors.Is(err, store.ErrQuota):
		p.mu.Lock()
		defer p.mu.Unlock()
		if h := p.hint(id); h.Key == "" {
			h.Key, h.At = recipient, time.Now()
			p.setHint(id, h)
		}
	case err != nil:
		p.log.Info("the key of a peer was not kept", "peer", id, "err", err)
	}
}

// keepAnnounced returns the key that a peer announced while there was no place for it, "" if it announced none. A message
// is about to go to the peer or came from it, so the key gets the place of a peer that no message went to or came from.
// If there is none, the key is good as long as it is remembered.
func (p *peers) keepAnnounced(ctx context.Context, peer string) string {
	p.mu.Lock()
	key := p.hint(peer).Key
	p.mu.Unlock()
	if key == "" {
		return ""
	}
	gone, err := p.idle(ctx)
	if err == nil && gone == nil {
		return key
	}
	if err == nil {
		own := p.record(Peer{Peer: peer, Recipient: key})
		err = p.talks.records.Apply(ctx, []store.Change{*gone, {Record: own, Max: maxPinned}}, time.Now())
	}
	if err != nil {
		p.log.Info("the key of a peer was not kept", "peer", peer, "err", err)
		return key
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hint(peer)
	h.Key = ""
	p.setHint(peer, h)
	return key
}

// idle returns the change that removes a peer whose announced key no conversation of the last day used, nil if there
// is none. The owner's word and what waits for it stay.
func (p *peers) idle(ctx context.Context) (*store.Change, error) {
	now := time.Now()
	all, err := p.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Collect(maps.Keys(all)) { // in no order: of many strangers any may go
		peer := all[id]
		if peer.ByOwner || peer.Agent != "" || peer.Pending != "" {
			continue
		}
		if last, err := p.talks.read(ctx, p.talks.lastKey(id), now); err != nil {
			return nil, err
		} else if last.Conv == "" {
			return &store.Change{IfRev: peer.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: p.key(id)}}, nil
		}
	}
	return nil, nil
}
