package agentrelay

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const (
	maxHints  = 2500 // of a generation: the one before it is known too
	keepHint  = 24 * time.Hour
	maxSkills = 32
)

// hint is what a peer said of itself: unsigned, and never registered anywhere.
type hint struct {
	Skills []string
	At     time.Time
	Key    string // the first that it announced while there was no place to keep it
}

// hints are the latest of what peers said of themselves, in memory. Strangers who say something without end push out what
// others said long ago, never what somebody says now.
type hints struct{ now, before map[string]hint }

// of returns what a peer said within a day.
func (s *hints) of(peer string) hint {
	for _, known := range []map[string]hint{s.now, s.before} {
		if h, ok := known[peer]; ok && time.Since(h.At) < keepHint {
			return h
		}
	}
	return hint{}
}

func (s *hints) set(peer string, h hint) {
	if _, known := s.now[peer]; !known && len(s.now) >= maxHints || s.now == nil {
		s.before, s.now = s.now, make(map[string]hint)
	}
	s.now[peer] = h
}

// hint remembers a discovery for a day, and the key that came first with one (AR-49).
func (l *link) hint(h *heard) {
	skills, _ := h.payload.Get("skills")
	list, ok := readKeywords(skills)
	if !ok {
		list = nil
	}
	l.mu.Lock()
	l.hints.set(h.from, hint{list[:min(len(list), maxSkills)], time.Now(), l.hints.of(h.from).Key})
	l.mu.Unlock()
	if recipient := h.payload.GetStr("age_recipient"); recipient != "" {
		l.pin(h.from, recipient)
	}
}

// announce remembers the first key of a peer while there is no place to keep it.
func (l *link) announce(peer, recipient string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.hints.of(peer); h.Key == "" {
		h.Key, h.At = recipient, time.Now()
		l.hints.set(peer, h)
	}
}

// keepAnnounced returns the key that a peer announced while there was no place for it, "" if it announced none. A message
// is about to go to the peer or came from it, so the key gets the place of a peer that no message went to or came from.
// If there is none, the key is good as long as it is remembered.
func (l *link) keepAnnounced(ctx context.Context, peer string) string {
	l.mu.Lock()
	key := l.hints.of(peer).Key
	l.mu.Unlock()
	if key == "" {
		return ""
	}
	gone, err := l.idlePeer(ctx)
	if err == nil && gone == nil {
		return key
	}
	if err == nil {
		own := l.peerRecord(Peer{Peer: peer, Recipient: key})
		err = l.b.cfg.Store.Records().Apply(ctx, []store.Change{*gone, {Record: own, Max: maxPinned}}, time.Now())
	}
	if err != nil {
		l.log.Info("the key of a peer was not kept", "peer", peer, "err", err)
		return key
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hints.of(peer)
	h.Key = ""
	l.hints.set(peer, h)
	return key
}

// idlePeer returns the change that removes a peer whose announced key no conversation of the last day used, nil if there
// is none. The owner's word and what waits for it stay.
func (l *link) idlePeer(ctx context.Context) (*store.Change, error) {
	now := time.Now()
	all, err := l.keptPeers(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Collect(maps.Keys(all)) { // in no order: of many strangers any may go
		p := all[id]
		if p.ByOwner || p.Agent != "" || p.Pending != "" {
			continue
		}
		if last, err := l.read(ctx, l.lastKey(id), now); err != nil {
			return nil, err
		} else if last.Conv == "" {
			return &store.Change{IfRev: p.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: l.peerKey(id)}}, nil
		}
	}
	return nil, nil
}

// peerRecord returns the row of a peer.
func (l *link) peerRecord(p Peer) store.Record {
	body, _ := json.Marshal(p) // strings and a boolean always encode
	terms := []string{"link:" + l.cfg.Name}
	if p.Agent != "" {
		terms = append(terms, "agent:"+string(p.Agent))
	}
	return store.Record{NS: nsPeers, Key: l.peerKey(p.Peer), Body: body, Terms: terms}
}
