package gateway

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The bounds of what a space remembers for polling (MEW-H2). It is not kept across restarts (MEW-Q5).
const (
	maxHistory      = 10_000
	maxHistoryBytes = 32 << 20
	maxPoll         = 500
)

// history is the last envelopes that everybody could see, by time of receipt.
type history struct {
	last    time.Time
	entries []past
	start   int
	bytes   int
}

type past struct {
	at     time.Time
	raw    []byte
	except *member // did not get it
}

// tick returns a time after every one before, whatever the clock does.
func (h *history) tick(now time.Time) time.Time {
	now = now.Round(0) // wall time: it is what clients send back
	if !now.After(h.last) {
		now = h.last.Add(time.Nanosecond)
	}
	h.last = now
	return now
}

func (h *history) add(at time.Time, raw []byte, except *member) {
	h.entries = append(h.entries, past{at, raw, except})
	h.bytes += len(raw)
	for len(h.entries)-h.start > maxHistory || h.bytes > maxHistoryBytes {
		h.bytes -= len(h.entries[h.start].raw)
		h.entries[h.start] = past{}
		h.start++
	}
	if h.start > maxHistory {
		h.entries = slices.Delete(h.entries, 0, h.start)
		h.start = 0
	}
}

// since returns at most limit envelopes that m could see after a time, and where the next page begins.
func (h *history) since(t time.Time, m *member, limit int) (out []wire.Value, next time.Time) {
	next = t
	live := h.entries[h.start:]
	from, _ := slices.BinarySearchFunc(live, t, func(p past, t time.Time) int {
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
		if p.except == m || p.at.Before(m.lasting.Since) {
			continue
		}
		if v, err := wire.ParseForeign(p.raw, envelope.MaxDepth, envelope.MaxValues+envelope.MaxList); err == nil { // it is ours: it parses
			out = append(out, v)
		}
	}
	return out, next
}

// polls are the polls that wait for the next broadcast.
type polls map[chan struct{}]struct{}

func (p polls) wake() {
	for c := range p {
		close(c)
		delete(p, c)
	}
}

func (p polls) add() chan struct{} {
	c := make(chan struct{})
	p[c] = struct{}{}
	return c
}
