package bridge_test

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
)

func TestLimitText(t *testing.T) {
	for text, want := range map[string]bridge.Limit{"0": bridge.NoLimit, "1": 1, "60": 60} {
		var l bridge.Limit
		if err := l.UnmarshalText([]byte(text)); err != nil || l != want {
			t.Errorf("%q = %d, %v, want %d", text, l, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1.5", "many", "4294967296"} {
		var l bridge.Limit
		if err := l.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q = %d, want an error", text, l)
		}
	}
}

// countCharges returns how many of n messages at one instant the meter lets through.
func countCharges(m *bridge.LinkMeter, d bridge.Draw, n int) (taken int) {
	for range n {
		if _, ok := m.Charge(d, time.Unix(1e9, 0)); ok {
			taken++
		}
	}
	return taken
}

func TestLinkMeter(t *testing.T) {
	for name, test := range map[string]struct {
		limits                    bridge.LinkLimits
		messages, toolCalls, open int
	}{
		"default": {bridge.LinkLimits{}, 60, 30, 200},
		"set":     {bridge.LinkLimits{Messages: 5, ToolCalls: 2, Conversations: 7}, 5, 2, 7},
		"off":     {bridge.LinkLimits{Messages: bridge.NoLimit, ToolCalls: bridge.NoLimit, Conversations: bridge.NoLimit}, 1000, 1000, 0},
		"calls":   {bridge.LinkLimits{Messages: 5, ToolCalls: 9}, 5, 5, 200}, // each call is also a message
	} {
		if got := countCharges(bridge.NewLinkMeter(test.limits), bridge.DrawMessage, 1000); got != test.messages {
			t.Errorf("%s: %d messages, want %d", name, got, test.messages)
		}
		m := bridge.NewLinkMeter(test.limits)
		if got := countCharges(m, bridge.DrawToolCall, 1000); got != test.toolCalls {
			t.Errorf("%s: %d tool calls, want %d", name, got, test.toolCalls)
		}
		if got := countCharges(m, bridge.DrawNothing, 1000); got != 1000 {
			t.Errorf("%s: %d messages that draw nothing, want all", name, got)
		}
		if m.MaxOpen() != test.open {
			t.Errorf("%s: %d open conversations, want %d", name, m.MaxOpen(), test.open)
		}
	}
}

// TestRefusedToolCallCostsNothing: a tool call that the limit of messages refuses takes nothing from the limit of tool
// calls.
func TestRefusedToolCallCostsNothing(t *testing.T) {
	m, now := bridge.NewLinkMeter(bridge.LinkLimits{Messages: 60, ToolCalls: 1}), time.Unix(1e9, 0)
	countCharges(m, bridge.DrawMessage, 60)
	if _, ok := m.Charge(bridge.DrawToolCall, now); ok {
		t.Error("message 61 of a minute is let through")
	}
	if wait, ok := m.Charge(bridge.DrawToolCall, now.Add(time.Second)); !ok {
		t.Errorf("the first tool call must wait %v", wait)
	}
}
