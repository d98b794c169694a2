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
	maxPeersKept = 1000 // records
	maxPinned    = 500  // records above which no announced key is stored: the rest is for decisions of the owner
	maxHints     = 2500 // of each of two generations
	keepHint     = 24 * time.Hour
	maxSkills    = 32
	changeTries  = 16 // attempts of change
	storeTimeout = 10 * time.Second
)

// Peer is the stored record of an agent behind a link. It holds decisions of the owner and the first key of the peer.
type Peer struct {
	Peer      string       `json:"peer"`                        // its id on the relay
	Agent     wire.AgentID `json:"agent_id,omitempty"`          // the agent of the mesh that this peer is, according to the owner
	Recipient string       `json:"age_recipient,omitempty"`     // the key to which the link encrypts
	ByOwner   bool         `json:"by_owner,omitempty"`          // the key comes from the owner; otherwise the peer announced it
	Pending   string       `json:"pending_recipient,omitempty"` // another key, which waits for the owner's decision

	rev store.Rev // of the record as read; store.Absent if it does not exist
}

// hint is what a peer said about itself. It is unsigned and stays in memory.
type hint struct {
	Skills []string
	At     time.Time
	Key    string // the first key that the peer announced while the store had no room for it
}

// peers holds what a link knows about the agents behind it: the ids that it saw, recent hints, and stored records.
type peers struct {
	convStore convStore
	log       *slog.Logger

	mu   sync.Mutex
	seen map[string]bool
	// Hints have two generations. Strangers who announce without end push out old hints of others, never recent ones.
	recentHints, olderHints map[string]hint
}

func (p *peers) addSeen(peer string) {
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

// hint returns what a peer said within a day, or the zero hint. The caller holds p.mu.
func (p *peers) hint(peer string) hint {
	for _, hints := range []map[string]hint{p.recentHints, p.olderHints} {
		if h, ok := hints[peer]; ok && time.Since(h.At) < keepHint {
			return h
		}
	}
	return hint{}
}

// setHint remembers what a peer said. The caller holds p.mu.
func (p *peers) setHint(peer string, h hint) {
	if _, known := p.recentHints[peer]; p.recentHints == nil || !known && len(p.recentHints) >= maxHints {
		p.olderHints, p.recentHints = p.recentHints, make(map[string]hint)
	}
	p.recentHints[peer] = h
}

// handleDiscovery handles the frame in which a peer announces its skills and its key. It remembers the skills for a
// day, and pins the key if it is the first one of the peer (AR-49).
func (p *peers) handleDiscovery(h *incoming) {
	skills, _ := h.payload.Get("skills")
	list, _ := frame.ReadKeywords(skills) // nil if it is not valid
	p.mu.Lock()
	p.setHint(h.from, hint{list[:min(len(list), maxSkills)], time.Now(), p.hint(h.from).Key})
	p.mu.Unlock()
	if recipient := h.payload.GetStr("age_recipient"); recipient != "" {
		p.pin(h.from, recipient)
	}
}

func (p *peers) recordKey(peer string) string { return p.convStore.link + "/" + peer }

// get returns the record of a peer, or a new one with only its id.
func (p *peers) get(ctx context.Context, id string) (Peer, error) {
	peer := Peer{Peer: id}
	rev, _, err := store.ReadRecord(ctx, p.convStore.records, nsPeers, p.recordKey(id), &peer, time.Now())
	peer.rev = rev
	return peer, err
}

func (p *peers) all(ctx context.Context) (map[string]Peer, error) {
	page, err := p.convStore.records.List(ctx, nsPeers, "link:"+p.convStore.link, "", maxPeersKept, time.Now())
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

// change reads a peer, edits it and stores it. It starts again if somebody else changed the record meanwhile. edit
// reports whether there is anything to store.
func (p *peers) change(ctx context.Context, id string, edit func(*Peer) bool) (peer Peer, err error) {
	for range changeTries {
		if peer, err = p.get(ctx, id); err != nil || !edit(&peer) {
			return peer, err
		}
		if err = p.put(ctx, peer); !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	return peer, err
}

// put stores a peer. It returns store.ErrConflict if somebody else changed the record since it was read, and
// store.ErrQuota if the store is full.
func (p *peers) put(ctx context.Context, peer Peer) error {
	limit := maxPeersKept
	if peer.Agent == "" && !peer.ByOwner {
		limit = maxPinned
	}
	return p.convStore.records.Apply(ctx, []store.Change{{Record: p.record(peer), IfRev: peer.rev, Max: limit}}, time.Now())
}

func (p *peers) record(peer Peer) store.Record {
	body := wire.MustMarshal(peer)
	terms := []string{"link:" + p.convStore.link}
	if peer.Agent != "" {
		terms = append(terms, "agent:"+string(peer.Agent))
	}
	return store.Record{NS: nsPeers, Key: p.recordKey(peer.Peer), Body: body, Terms: terms}
}

// pin stores the first key that a peer announces. It shows a different later key to the owner but does not use it.
// Until the owner decides, it stores no further key (AR-49). If the store has no room, pin only remembers the key.
func (p *peers) pin(id, recipient string) {
	if len(recipient) > 256 || !signing.ValidAgeRecipient(recipient) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	isSecond := false
	_, err := p.change(ctx, id, func(peer *Peer) bool {
		isSecond = false
		switch {
		case peer.Recipient == recipient || peer.Pending != "":
			return false
		case peer.Recipient == "":
			peer.Recipient = recipient
		default:
			peer.Pending, isSecond = recipient, true
		}
		return true
	})
	if isSecond {
		p.log.Warn("a peer announced another key; to accept it, run agentmesh agentrelay peer", "peer", id)
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
		p.log.Info("cannot store the key of a peer", "peer", id, "err", err)
	}
}

// storeAnnouncedKey stores and returns the key that a peer announced while the store had no room, or returns "" if it
// announced none. The key replaces that of an idle peer, because the caller exchanges messages with this one. If no peer
// is idle, the key is used as long as it is remembered.
func (p *peers) storeAnnouncedKey(ctx context.Context, peer string) string {
	p.mu.Lock()
	key := p.hint(peer).Key
	p.mu.Unlock()
	if key == "" {
		return ""
	}
	deletion, err := p.findIdle(ctx)
	if err == nil && deletion == nil {
		return key
	}
	if err == nil {
		own := p.record(Peer{Peer: peer, Recipient: key})
		err = p.convStore.records.Apply(ctx, []store.Change{*deletion, {Record: own, Max: maxPinned}}, time.Now())
	}
	if err != nil {
		p.log.Info("cannot store the key of a peer", "peer", peer, "err", err)
		return key
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hint(peer)
	h.Key = ""
	p.setHint(peer, h)
	return key
}

// findIdle returns the change that deletes the record of a peer without a conversation in the last day, or nil if it
// finds no such record. Records with a decision of the owner, or waiting for one, stay.
func (p *peers) findIdle(ctx context.Context) (*store.Change, error) {
	now := time.Now()
	all, err := p.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Collect(maps.Keys(all)) { // in random order: any idle stranger may go
		peer := all[id]
		if peer.ByOwner || peer.Agent != "" || peer.Pending != "" {
			continue
		}
		if last, err := p.convStore.read(ctx, p.convStore.lastKey(id), now); err != nil {
			return nil, err
		} else if last.Conv == "" {
			return &store.Change{IfRev: peer.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: p.recordKey(id)}}, nil
		}
	}
	return nil, nil
}
