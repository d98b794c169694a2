package daemon

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
)

// TestLinkHandle: every name of an agent leads to an id that a relay accepts.
func TestLinkHandle(t *testing.T) {
	for text, want := range map[string]string{
		"Hub": "hub", "Sarah's agent": "sarah-s-agent", "  --  ": "node", "ab": "node", "Relay": "node", "Øre 7": "re-7",
		strings.Repeat("x", 31) + "-y": strings.Repeat("x", 31),
	} {
		if got := linkHandle(text); got != want || !frame.ValidAgentID(got) {
			t.Errorf("linkHandle(%q) = %q, want %q", text, got, want)
		}
	}
}
