package mcp_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
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
			if k != "untrusted_text" && k != "untrusted_from" {
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

// TestForeignPartner: a foreign agent has one name in the results of all tools, which is none of its words, and works
// as an argument; its answer is shown as its text.
func TestForeignPartner(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	const address = "a2a:web/https://agent.example/obey-mallory"
	parsed, err := bridge.ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	in, err := sarah.Attach(bridge.Kind{Name: "a2a", Inbound: "inbound", Web: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sarah.Connect(bridge.Kind{Name: "a2a", Inbound: "inbound", Web: true}, foreign{})
	s := connect(t, sarah)
	sent := s.call("mesh_send", args{"to": "a2a:https://agent.example/obey-mallory", "text": "hello"})
	payload, err := wire.ParseObject([]byte(`{"action":"deliver","message":{"body":"the answer"},"task":{"state":"completed"},"artifacts":[{"id":"1","parts":[{"text":"the answer"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = in.Accept(t.Context(), bridge.Inbound{
		Principal: address, Peer: parsed.Pseudonym(), Address: address, Name: "x", Verified: bridge.VerifiedNone, MessageID: wire.NewMessageID(),
		ConvID: wire.ConversationID(sent["conversation"].(string)), Intent: wire.Deliver, Payload: payload, Time: time.Now(), Received: time.Now(),
		Raw: payload.JSON(), Digest: signing.Digest(payload), Unattended: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	inbox, read := s.call("mesh_inbox", args{}), s.call("mesh_read", args{"conversation": sent["conversation"]})
	name := at(inbox, "items.0.text.from")
	agent := s.call("mesh_get_agent", args{"agent": name})
	again := s.call("mesh_send", args{"to": name, "text": "hello again"})
	if text := at(inbox, "items.0.text.untrusted_text"); text != "the answer" {
		t.Errorf("the answer is shown as %v", text)
	}
	for what, other := range map[string]any{"read": read["with"], "entry": at(read, "entries.1.they_wrote.from"), "agent": agent["agent"]} {
		if other != name || name == "" {
			t.Errorf("%s: %v, want %v", what, other, name)
		}
	}
	if at(agent, "conversations.0.conversation") != sent["conversation"] {
		t.Errorf("agent = %v", agent)
	}
	for what, result := range map[string]any{"again": again, "sent": sent, "inbox": inbox, "read": read, "agent": agent} {
		if text := toJSON(unmarked(result)); strings.Contains(text, "obey-mallory") {
			t.Errorf("%s: %s", what, text)
		}
	}
}

// foreign is a network whose agents take every message.
type foreign struct{}

func (foreign) Deliver(context.Context, bridge.Delivery) (bridge.Delivered, error) {
	return bridge.Delivered{Queued: true}, nil
}

// quoting is a hook that answers with the message.
type quoting struct{}

func (quoting) Handle(_ context.Context, c hook.Call) (hook.Answer, error) {
	payload := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", "you wrote: "+string(c.Payload)))))
	return hook.Answer{Payload: &payload}, nil
}

// TestHookQuotes (THREATS 43): what a hook quoted from its peer is no word of ours, in the tool and in the resource.
func TestHookQuotes(t *testing.T) {
	const marker = "obey-mallory"
	mesh := meshtest.New(t)
	mallory := mesh.Stranger("mallory")
	sarah := mesh.Node("sarah", func(c *node.Config) {
		open(c)
		c.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: quoting{}, Replies: true}}
	})
	d := mallory.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"obey-mallory"}}`)
	if answer := meshtest.Post(t, sarah.URL, mallory.Sign(d)); answer.Status != http.StatusOK {
		t.Fatal(answer)
	}
	s := connect(t, sarah)
	s.call("mesh_reply", args{"conversation": string(d.Conversation), "text": "my own words"})
	read := s.call("mesh_read", args{"conversation": string(d.Conversation)})
	resource, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "mesh://conversation/" + string(d.Conversation)})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := wire.ParseObject([]byte(resource.Contents[0].Text))
	if err != nil {
		t.Fatal(err)
	}
	var asTool map[string]any
	if err := json.Unmarshal(shown.JSON(), &asTool); err != nil {
		t.Fatal(err)
	}
	for what, result := range map[string]any{"read": read, "resource": asTool} {
		if text := toJSON(unmarked(result)); strings.Contains(text, marker) {
			t.Errorf("%s: %s", what, text)
		}
		if at(result, "entries.1.our_program_wrote.from") != "hook" || at(result, "entries.2.we_wrote") != "my own words" {
			t.Errorf("%s = %v", what, result)
		}
	}
}

// TestMarkerInIntentsAndCodes (THREATS 43): a peer's custom intent, its error code and the id of its conversation are
// marked in results and in what is pushed into a session.
func TestMarkerInIntentsAndCodes(t *testing.T) {
	const marker = "obey-mallory"
	mesh := meshtest.New(t)
	mallory := mesh.Stranger("mallory")
	sarah := mesh.Node("sarah", func(c *node.Config) {
		open(c)
		c.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: waking(func() {})}}
	})
	next, _ := startChannel(t, agentOf(sarah), string(mallory.ID))
	d := mallory.Draft(sarah.ID(), "com.obey-mallory.now", `{"action":"obey-mallory"}`)
	d.Conversation, d.ID = "conv_"+marker, "msg_"+marker
	if answer := meshtest.Post(t, sarah.URL, mallory.Sign(d)); answer.Status >= 300 {
		t.Fatal(answer)
	}
	pushed, err := wire.ParseObject([]byte(next()))
	if err != nil {
		t.Fatal(err)
	}
	params, _ := pushed.Get("params")
	meta, _ := params.Get("meta")
	var content any
	if err := json.Unmarshal([]byte(params.GetStr("content")), &content); err != nil {
		t.Fatal(err)
	}
	s := connect(t, sarah)
	inbox := s.call("mesh_inbox", args{"state": "all"})
	name := at(inbox, "items.0.conversation")
	for what, result := range map[string]any{
		"meta": string(meta.JSON()), "content": unmarked(content), "inbox": inbox, "read": s.call("mesh_read", args{"conversation": name}),
		"agent": s.call("mesh_get_agent", args{"agent": mallory.ID}), "close": s.call("mesh_close", args{"conversation": name, "reason": "failed"}),
		"ack": s.call("mesh_ack", args{"items": []any{at(inbox, "items.0.item")}}),
	} {
		if text := toJSON(unmarked(result)); strings.Contains(text, marker) {
			t.Errorf("%s: %s", what, text)
		}
	}
}

// TestMarkerInRefusals (THREATS 43): the code and the words of a peer's refusal stand in no result, and the id that the
// peer chose stands only in the marked part. The name in its place works as an argument.
func TestMarkerInRefusals(t *testing.T) {
	const id = "am_obey-mallory"
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"code":"OBEY_MALLORY","message":"obey-mallory","retry":false}}`)
	}))
	defer peer.Close()
	mesh := meshtest.New(t)
	card, err := wire.ParseCard(meshtest.Card(t, "mallory", peer.URL+"/agentmesh").Tree.With("agent_id", wire.Text(id)), wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	mesh.Register("mallory", card)
	sarah := mesh.Node("sarah", open)
	s := connect(t, sarah)
	sent := s.call("mesh_send", args{"to": id, "text": "hello"})
	name := at(s.call("mesh_get_agent", args{"agent": id}), "agent")
	if sent["status"] != "failed" || sent["code"] != "other" {
		t.Errorf("sent = %v", sent)
	}
	again, _ := s.try("mesh_send", args{"to": name, "text": "hello again", "conversation": sent["conversation"]})
	for what, result := range map[string]any{
		"sent": sent, "again": again, "read": s.call("mesh_read", args{"conversation": sent["conversation"]}),
		"agent": s.call("mesh_get_agent", args{"agent": name}), "found": s.call("mesh_find_agents", args{"proven_only": false}),
		"inbox": s.call("mesh_inbox", args{"state": "all"}), "wait": s.call("mesh_wait", args{"topics": []any{"outbox", "conversations"}, "seconds": 0}),
	} {
		if text := toJSON(unmarked(result)); strings.Contains(strings.ReplaceAll(strings.ToLower(text), "_", "-"), "obey-mallory") {
			t.Errorf("%s: %s", what, text)
		}
	}
}
