package daemon

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
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

// TestNameOwnLink: each space gets a link of its own, even if two ids differ only in what a link's name cannot hold.
func TestNameOwnLink(t *testing.T) {
	var all []bridge.Link
	for _, id := range []string{"lab", "a", "b", "Lab", "c", strings.Repeat("x", 40), strings.Repeat("x", 41)} {
		all = append(all, bridge.Link{Name: nameOwnLink(id, all), Kind: link.Kind, URL: "ws://127.0.0.1:3141", Space: id})
	}
	seen := make(map[string]string)
	for _, l := range all {
		if err := l.Validate(); err != nil {
			t.Error(err)
		}
		if other, taken := seen[l.Name]; taken {
			t.Errorf("the spaces %s and %s both have the link %s", other, l.Space, l.Name)
		}
		seen[l.Name] = l.Space
	}
	if all[0].Name != "own-lab" || all[1].Name != "own-node" {
		t.Errorf("the first links are %s and %s", all[0].Name, all[1].Name)
	}
}
