package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsHistory is the namespace in which the history extension stores messages. Its keys sort by time.
const nsHistory = "agentrelay/history"

const (
	defaultKeep     = 7 * 24 * time.Hour
	defaultMessages = 10_000
	maxHistoryBytes = 32 << 20 // total size of the frames; their search texts need about as much memory again
	maxTrimmed      = 500      // messages that one write deletes
)

// entry is a message in the history.
type entry struct {
	id, from  string
	kind      string
	ts        int64
	seq       uint64 // order within a millisecond
	to        []string
	broadcast bool
	raw       []byte // the frame as it was delivered
	text      string // the searchable text in lower case; empty if the message is not searchable
}

func (e *entry) key() string { return fmt.Sprintf("%014d-%012d-%s", e.ts, e.seq, e.id) }

// history stores the newest messages on disk and in memory, within bounds of age, number and size.
type history struct {
	records store.Records
	clock   *store.WallClock
	keep    time.Duration
	max     int

	searching sync.Mutex // held by the one search that runs

	mu    sync.Mutex
	list  []*entry // oldest first
	bytes int
}

func loadHistory(ctx context.Context, records store.Records, clock *store.WallClock, cfg Extensions) (*history, error) {
	h := &history{records: records, clock: clock, keep: cmp.Or(cfg.Keep, defaultKeep), max: cmp.Or(cfg.MaxMessages, defaultMessages)}
	for rec, err := range store.AllRecords(ctx, records, nsHistory, "", time.Now()) {
		var e *entry
		if err == nil {
			e, err = readEntry(rec.Body)
		}
		if err == nil {
			_, err = fmt.Sscanf(rec.Key, "%d-%d-", &e.ts, &e.seq)
		}
		if err != nil {
			return nil, fmt.Errorf("read message %q of the relay: %w", rec.Key, err)
		}
		h.add(e)
	}
	return h, nil
}

func readEntry(raw []byte) (*entry, error) {
	v, err := wire.ParseForeign(raw, frame.MaxDepth, frame.MaxValues)
	if err != nil {
		return nil, err
	}
	e := &entry{id: v.GetStr("id"), from: v.GetStr("from"), kind: v.GetStr("type"), raw: raw}
	ts, _ := v.Get("ts")
	if err := json.Unmarshal(ts.JSON(), &e.ts); err != nil {
		return nil, err
	}
	to, _ := v.Get("to")
	for t := range to.Elems() {
		s, _ := t.Str()
		e.to = append(e.to, s)
	}
	e.broadcast = slices.Contains(e.to, frame.Everybody)
	payload, _ := v.Get("payload")
	e.text = frame.SearchText(e.kind, payload)
	return e, nil
}

func (h *history) add(e *entry) {
	h.list = append(h.list, e)
	h.bytes += len(e.raw)
}

func (h *history) change(e *entry) store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{
		NS: nsHistory, Key: e.key(), Body: e.raw, Expires: time.UnixMilli(e.ts).Add(h.keep),
	}}
}

// append stores a message durably, together with changes, and makes room for it.
func (h *history) append(ctx context.Context, e *entry, changes ...store.Change) error {
	now := time.Now()
	if err := h.records.Apply(ctx, slices.Concat(changes, h.trim(now), []store.Change{h.change(e)}), now); err != nil {
		return err
	}
	h.insert(e)
	return nil
}

// insert adds a stored message at the position of its key: the commits of two senders may finish in either order.
func (h *history) insert(e *entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(e)
	for i := len(h.list) - 1; i > 0 && h.list[i-1].key() > h.list[i].key(); i-- {
		h.list[i-1], h.list[i] = h.list[i], h.list[i-1]
	}
}

// snapshot returns the messages that are within the bounds, oldest first.
func (h *history) snapshot(now time.Time) []*entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list[h.countExcess(now):]) // a copy, because insert reorders the list in place
}

// countExcess returns how many of the oldest messages exceed a bound. While the clock is in doubt, no message is too
// old. The caller holds h.mu.
func (h *history) countExcess(now time.Time) int {
	var oldest int64
	if h.clock.Reliable() {
		oldest = now.Add(-h.keep).UnixMilli()
	}
	n, bytes := 0, h.bytes
	for n < len(h.list) && (len(h.list)-n > h.max || bytes > maxHistoryBytes || h.list[n].ts < oldest) {
		bytes -= len(h.list[n].raw)
		n++
	}
	return n
}

// trim forgets the messages that exceed a bound, but at most maxTrimmed, and returns the changes that delete them.
func (h *history) trim(now time.Time) (changes []store.Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(h.countExcess(now), maxTrimmed)
	for _, e := range h.list[:n] {
		changes = append(changes, store.Change{Record: store.Record{NS: nsHistory, Key: e.key()}, IfRev: store.Any, Delete: true})
		h.bytes -= len(e.raw)
	}
	h.list = slices.Delete(h.list, 0, n)
	return changes
}

// sweep deletes the messages that exceed a bound. What it cannot delete expires in the store.
func (h *history) sweep(ctx context.Context, now time.Time) error {
	for changes := h.trim(now); len(changes) > 0; changes = h.trim(now) {
		if err := h.records.Apply(ctx, changes, now); err != nil {
			return err
		}
	}
	return nil
}

// isVisibleTo reports whether an agent may see the message: a broadcast, or a message that it sent or received (AR-46).
// The message must be newer than the agent's registration, because an earlier agent may have had the same id.
func (e *entry) isVisibleTo(a *member) bool {
	if e.ts <= a.Created.UnixMilli() { // the agent's own messages are newer (see [stamps.registrationTime])
		return false
	}
	return e.broadcast || e.from == a.ID || slices.Contains(e.to, a.ID)
}

func (h *history) visibleTo(a *member, now time.Time) []*entry {
	var out []*entry
	for _, e := range h.snapshot(now) {
		if e.isVisibleTo(a) {
			out = append(out, e)
		}
	}
	return out
}

// splitQuery returns the words of a query in lower case, each once, and at most 16 of them.
func splitQuery(query string) []string {
	var out []string
	for w := range strings.FieldsSeq(strings.ToLower(query)) {
		if !slices.Contains(out, w) && len(out) < 16 {
			out = append(out, w)
		}
	}
	return out
}

// score returns how many words of a query occur in a text, also inside longer words.
func score(query []string, text string) int {
	n := 0
	for _, w := range query {
		if strings.Contains(text, w) {
			n++
		}
	}
	return n
}

// search returns at most limit messages that the agent may see and that contain a word of the query: first those with
// more of the words, then the newer ones. Each search reads the whole history, so only one runs at a time.
func (h *history) search(a *member, query string, limit int, now time.Time) []*entry {
	type hit struct {
		e     *entry
		score int
	}
	h.searching.Lock()
	defer h.searching.Unlock()
	terms := splitQuery(query)
	var hits []hit
	for _, e := range slices.Backward(h.visibleTo(a, now)) {
		if n := score(terms, e.text); n > 0 {
			hits = append(hits, hit{e, n})
		}
	}
	slices.SortStableFunc(hits, func(x, y hit) int { return cmp.Compare(y.score, x.score) })
	out := make([]*entry, min(limit, len(hits)))
	for i := range out {
		out[i] = hits[i].e
	}
	return out
}
