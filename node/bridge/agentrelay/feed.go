package agentrelay

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	feedSize     = 1000 // AR-56
	maxSeen      = 5000 // ids; as many older ones are known too
	maxFeedBytes = 4 << 10
	maxHints     = 1000
	keepHint     = 24 * time.Hour
	maxSkills    = 32
)

// FeedItem is something that the owner may read and that nobody answers. All of it is untrusted text.
type FeedItem struct {
	ID        string          `json:"id"`
	From      string          `json:"from"`
	Type      string          `json:"type,omitempty"`
	Ref       string          `json:"ref,omitempty"`
	Payload   json.RawMessage `json:"payload,omitempty"`
	Truncated bool            `json:"truncated,omitempty"`
	Broadcast bool            `json:"broadcast"`
	Note      string          `json:"note,omitempty"` // ours
	At        time.Time       `json:"at"`
}

// feed is the latest of what came, in memory: the relay itself keeps nothing.
type feed struct {
	mu        sync.Mutex
	list      []FeedItem
	seen, old map[string]time.Time // what came, and what came before that
}

func newFeed() *feed { return &feed{seen: make(map[string]time.Time)} }

func item(h *heard, broadcast bool) FeedItem {
	out := FeedItem{ID: h.id, From: h.from, Type: h.kind, Ref: h.ref, Broadcast: broadcast, At: time.Now().UTC()}
	if body := h.payload.JSON(); len(body) <= maxFeedBytes {
		out.Payload = body
	} else {
		out.Payload, out.Truncated = wire.Text(cut(textOf(h.payload), maxFeedBytes)).JSON(), true
	}
	return out
}

// add puts an item in, unless it was there within a day (AR-29). It says whether it is new.
func (f *feed) add(it FeedItem) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := hashKey(it.From, it.ID)
	for _, seen := range []map[string]time.Time{f.seen, f.old} {
		if at, ok := seen[key]; ok && it.At.Sub(at) < keepTalk {
			return false
		}
	}
	if len(f.seen) >= maxSeen {
		f.old, f.seen = f.seen, make(map[string]time.Time)
	}
	f.seen[key] = it.At
	f.list = append(f.list, it)
	if len(f.list) > feedSize {
		f.list = append([]FeedItem(nil), f.list[len(f.list)-feedSize:]...)
	}
	return true
}

// latest returns the newest items, newest first.
func (f *feed) latest(limit int) []FeedItem {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []FeedItem{}
	for i := len(f.list) - 1; i >= 0 && len(out) < limit; i-- {
		out = append(out, f.list[i])
	}
	return out
}

// hint is what a peer says it can do: unsigned, and never registered anywhere.
type hint struct {
	Skills []string
	At     time.Time
}

// hint remembers a discovery for a day, and the key that came first with one (AR-49).
func (l *link) hint(h *heard) {
	skills, _ := h.payload.Get("skills")
	list, ok := readKeywords(skills)
	if !ok {
		list = nil
	}
	l.mu.Lock()
	if len(l.hints) >= maxHints {
		for peer, old := range l.hints {
			if time.Since(old.At) >= keepHint {
				delete(l.hints, peer)
			}
		}
	}
	if _, known := l.hints[h.from]; known || len(l.hints) < maxHints {
		l.hints[h.from] = hint{list[:min(len(list), maxSkills)], time.Now()}
	}
	l.mu.Unlock()
	if recipient := h.payload.GetStr("age_recipient"); recipient != "" {
		l.pin(h.from, recipient)
	}
}
