package bridge

import (
	"fmt"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

// Off reports whether at least one of the limits is switched off.
func (l LinkLimits) Off() bool { return min(l.Messages, l.ToolCalls, l.Conversations) < 0 }

// NoLinkLimits returns limits that are all switched off.
func NoLinkLimits() LinkLimits { return LinkLimits{NoLimit, NoLimit, NoLimit} }

const (
	defaultMessages      = 60
	defaultToolCalls     = 30
	defaultConversations = 200
)

// Limit is one of [LinkLimits]: a number, or [NoLimit]. The zero value stands for the default.
type Limit int

// NoLimit switches a limit off. A configuration writes it as 0.
const NoLimit Limit = -1

// UnmarshalText reads a limit from the configuration: a whole number, where 0 means no limit.
func (l *Limit) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 31)
	if err != nil {
		return fmt.Errorf("%q is not a whole number; 0 switches the limit off", text)
	}
	if *l = Limit(n); n == 0 {
		*l = NoLimit
	}
	return nil
}

// or returns the limit as a number: fallback for the zero value, 0 for no limit.
func (l Limit) or(fallback int) int {
	switch {
	case l == 0:
		return fallback
	case l < 0:
		return 0
	}
	return int(l)
}

// Draw is what a message takes from the meter of its link.
type Draw uint8

const (
	DrawMessage  Draw = iota
	DrawToolCall      // a message that makes this node act at once; it takes both a message and a tool call
	DrawNothing       // a message that only ends earlier work: a reply to our request, or a withdrawal
)

// LinkMeter enforces the [LinkLimits] of one link. It is safe for concurrent use.
type LinkMeter struct {
	messages, toolCalls *rate.Buckets // each with one bucket, whose key is ""; nil for no limit
	maxOpen             int
}

// NewLinkMeter returns a meter with full buckets.
func NewLinkMeter(l LinkLimits) *LinkMeter {
	perMinute := func(n int) *rate.Buckets {
		if n == 0 {
			return nil
		}
		return rate.NewBuckets(rate.PerMinute(n), n, 1)
	}
	return &LinkMeter{
		messages: perMinute(l.Messages.or(defaultMessages)), toolCalls: perMinute(l.ToolCalls.or(defaultToolCalls)),
		maxOpen: l.Conversations.or(defaultConversations),
	}
}

// Charge takes what a message draws and returns true. If a limit is used up, it takes nothing, and returns false and
// the time until there is room again.
func (m *LinkMeter) Charge(d Draw, now time.Time) (wait time.Duration, ok bool) {
	if d == DrawNothing {
		return 0, true
	}
	if d == DrawToolCall {
		if wait, ok := m.toolCalls.Take("", now); !ok {
			return wait, false
		}
	}
	if wait, ok = m.messages.Take("", now); !ok && d == DrawToolCall {
		m.toolCalls.Return("", now)
	}
	return wait, ok
}

// MaxOpen returns how many conversations the foreign side may have open; 0 means any number.
func (m *LinkMeter) MaxOpen() int { return m.maxOpen }
