package link

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	feedSize     = 1000 // AR-56
	maxSeen      = 5000 // ids; as many older ids are remembered too
	maxFeedBytes = 4 << 10
)

// FeedItem is a message in the feed that the owner may read. Its texts are untrusted, except for Note.
type FeedItem struct {
	ID        string          `json:"id"`
	From      string          `json:"from"`
	Type      string          `json:"type,omitempty"`
	Ref       string          `json:"ref,omitempty"`
	Payload   json.RawMessage `json:"payload,omitempty"`
	Truncated bool            `json:"truncated,omitempty"`
	Broadcast bool            `json:"broadcast"`
	Note      string          `json:"note,omitempty"` // written by this node
	At        time.Time       `json:"at"`
}

// itemLog is the owner's feed: the latest items, in memory.
type itemLog struct {
	mu        sync.Mutex
	list      []FeedItem
	counts    map[string]int       // items of each agent in list
	seen, old map[string]time.Time // ids of recent items and of older ones
}

func newItemLog() *itemLog {
	return &itemLog{counts: make(map[string]int), seen: make(map[string]time.Time)}
}

func newFeedItem(h *incoming) FeedItem {
	out := FeedItem{ID: h.id, From: h.from, Type: h.kind, Ref: h.ref, At: time.Now().UTC()}
	if body := h.payload.JSON(); len(body) <= maxFeedBytes {
		out.Payload = body
	} else {
		out.Payload, out.Truncated = wire.Text(frame.Shorten(textOf(h.payload), maxFeedBytes)).JSON(), true
	}
	return out
}

func newBroadcastItem(h *incoming) FeedItem {
	out := newFeedItem(h)
	out.Broadcast = true
	return out
}

// add appends an item, unless the log had it within a day (AR-29). It reports whether the item is new.
func (f *itemLog) add(it FeedItem) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := wire.HashOf(it.From, it.ID)
	for _, seen := range []map[string]time.Time{f.seen, f.old} {
		if at, ok := seen[key]; ok && it.At.Sub(at) < keepConv {
			return false
		}
	}
	if len(f.seen) >= maxSeen {
		f.old, f.seen = f.seen, make(map[string]time.Time)
	}
	f.seen[key] = it.At
	f.list = append(f.list, it)
	f.counts[it.From]++
	if len(f.list) > feedSize {
		f.drop()
	}
	return true
}

// drop removes the oldest item of the agents that have the most items, so that an agent that sends without end does not
// push out the items of others.
func (f *itemLog) drop() {
	highest := slices.Max(slices.Collect(maps.Values(f.counts)))
	i := slices.IndexFunc(f.list, func(it FeedItem) bool { return f.counts[it.From] == highest })
	from := f.list[i].From
	if f.counts[from]--; f.counts[from] == 0 {
		delete(f.counts, from)
	}
	f.list = slices.Delete(f.list, i, i+1)
}

// latest returns the newest items, newest first.
func (f *itemLog) latest(limit int) []FeedItem {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []FeedItem{}
	for i := len(f.list) - 1; i >= 0 && len(out) < limit; i-- {
		out = append(out, f.list[i])
	}
	return out
}
