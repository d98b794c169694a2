package mcp_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestMarkerStaysMarked (THREATS 43): a text that a peer put into every field that it chooses stands only in the part
// of a result that is marked as untrusted, and the names in its place work as arguments.
func TestMarkerStaysMarked(t *testing.T) {
	const marker = "obey-mallory"
	mesh := meshtest.New(t)
	mallory := mesh.Stranger("mallory")
	sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode = acl.Open })
	s := connect(t, sarah)
	d := mallory.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"obey-mallory"}}`)
	d.Conversation, d.ID = "conv_"+marker, "msg_"+marker
	if answer := meshtest.Post(t, sarah.URL, mallory.Sign(d)); answer.Status != http.StatusOK {
		t.Fatal(answer)
	}
	inbox := s.call("mesh_inbox", args{})
	name := at(inbox, "items.0.conversation")
	for what, result := range map[string]any{
		"inbox": inbox, "wait": s.call("mesh_wait", args{}), "read": s.call("mesh_read", args{"conversation": name}),
		"agent": s.call("mesh_get_agent", args{"agent": mallory.ID}), "reply": s.call("mesh_reply", args{"conversation": name, "text": "no"}),
	} {
		if text := toJSON(unmarked(result)); strings.Contains(text, marker) {
			t.Errorf("%s: %s", what, text)
		}
	}
}

// unmarked returns a result without its marked parts.
func unmarked(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			if k != "untrusted_text" {
				out[k] = unmarked(e)
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, unmarked(e))
		}
		return out
	}
	return v
}
