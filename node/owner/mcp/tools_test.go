package mcp_test

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestErrorsNameTools: errors name the tools that help, and no commands.
func TestErrorsNameTools(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, chris := mesh.Node("sarah", open), mesh.Node("chris", open)
	s := connect(t, sarah)
	ended := s.call("mesh_send", args{"to": chris.ID(), "text": "hello"})["conversation"]
	s.call("mesh_close", args{"conversation": ended, "reason": "completed"})
	for _, tt := range []struct {
		tool string
		args args
		want string
	}{
		{"mesh_send", args{"to": "nobody", "text": "x"}, "find agents with mesh_find_agents"},
		{"mesh_send", args{"to": sarah.ID(), "text": "x"}, "choose another agent: mesh_find_agents lists some"},
		{"mesh_reply", args{"conversation": ended, "text": "x"}, "start a new one with mesh_send"},
		{"mesh_reply", args{"conversation": "", "text": "x"}, "mesh_inbox and mesh_get_agent list conversations"},
		{"mesh_close", args{"conversation": "conv_x", "reason": "failed"}, "mesh_inbox and mesh_get_agent list conversations"},
	} {
		if text, failed := s.try(tt.tool, tt.args); !failed || !strings.HasSuffix(text, "; "+tt.want) {
			t.Errorf("%s %v: %s, want %q", tt.tool, tt.args, text, tt.want)
		}
	}
}

// TestSameConversationID: if two agents use the same conversation id, the tools take the agent too.
func TestSameConversationID(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, chris, dana := mesh.Node("sarah", open), mesh.Node("chris", open), mesh.Node("dana", open)
	s := connect(t, sarah)
	id := s.call("mesh_send", args{"to": chris.ID(), "text": "hello"})["conversation"]
	s.call("mesh_send", args{"to": dana.ID(), "text": "hello", "conversation": id})
	for tool, more := range map[string]args{"mesh_read": {}, "mesh_reply": {"text": "again", "final": true}, "mesh_close": {"reason": "failed"}} {
		more["conversation"] = id
		if text, failed := s.try(tool, more); !failed || !goldentest.Says(t, tool, text) {
			t.Errorf("%s: %s", tool, text)
		}
	}
	s.call("mesh_reply", args{"conversation": id, "peer": chris.ID(), "text": "again", "final": true})
	s.call("mesh_close", args{"conversation": id, "peer": dana.ID(), "reason": "failed"})
	for peer, want := range map[any]string{chris.ID(): "completed", dana.ID(): "failed"} {
		if state := s.call("mesh_read", args{"conversation": id, "peer": peer})["state"]; state != want {
			t.Errorf("the conversation with %s is %s, want %s", peer, state, want)
		}
	}
}
