package gateway

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// These are the bounds of the history and of polls (MEW-H2).
const (
	maxHistory      = 10_000 // envelopes
	maxHistoryBytes = 32 << 20
	maxPoll         = 500 // envelopes in one answer
)

// history holds the latest broadcast envelopes for polls, in the order of their receipt. It does not survive a restart
// (MEW-Q5).
type history struct {
	last    time.Time // the latest time that nextTime returned
	entries []historyEntry
	start   int // index of the oldest entry; those before it were removed
	bytes   int
}

type historyEntry struct {
	at     time.Time
	raw    []byte
	except *member // the member that did not get the envelope; may be nil
}

// nextTime returns a time for the next entry. It is later than all earlier ones, even if the clock was set back.
func (h *history) nextTime(now time.Time) time.Time {
	now = now.Round(0) // drop the monotonic reading, because clients send the time back as text
	if !now.After(h.last) {
		now = h.last.Add(time.Nanosecond)
	}
	h.last = now
	return now
}

func (h *history) add(at time.Time, raw []byte, except *member) {
	h.entries = append(h.entries, historyEntry{at, raw, except})
	h.bytes += len(raw)
	for len(h.entries)-h.start > maxHistory || h.bytes > maxHistoryBytes {
		h.bytes -= len(h.entries[h.start].raw)
		h.entries[h.start] = historyEntry{}
		h.start++
	}
	if h.start > maxHistory {
		h.entries = slices.Delete(h.entries, 0, h.start)
		h.start = 0
	}
}

// since returns at most limit envelopes that m could see and that came after t. The next page begins after next.
func (h *history) since(t time.Time, m *member, limit int) (out []wire.Value, next time.Time) {
	next = t
	live := h.entries[h.start:]
	from, _ := slices.BinarySearchFunc(live, t, func(p historyEntry, t time.Time) int {
		if p.at.After(t) {
			return 1
		}
		return -1
	})
	for _, p := range live[from:] {
		if len(out) >= limit {
			break
		}
		next = p.at
		if p.except == m || p.at.Before(m.record.Since) {
			continue
		}
		// This does not fail: the gateway adds less than MaxList values to an envelope that it has parsed.
		if v, err := wire.ParseForeign(p.raw, envelope.MaxDepth, envelope.MaxValues+envelope.MaxList); err == nil {
			out = append(out, v)
		}
	}
	return out, next
}
