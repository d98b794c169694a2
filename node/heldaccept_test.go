package node_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHeldAcceptIsTaken (AM-39): if the peer's owner decides about our accept, the message after the 202 confirms or
// refuses it, and the opener closes the conversation after a confirmation.
func TestHeldAcceptIsTaken(t *testing.T) {
	counter := `{"action":"counter","event":{"proposed_times":["2026-02-22T10:00:00Z"]}}`
	for _, c := range []struct {
		name   string
		after  []string // the peer's messages after its owner's decision
		closes bool
	}{
		{"received", []string{`{"action":"received"}`}, true},
		{"confirmed", []string{`{"action":"confirmed"}`}, true},
		{"still waiting, then received", []string{`{"action":"pending_approval"}`, `{"action":"received"}`}, true},
		{"another proposal", []string{counter, `{"action":"received"}`}, false},
		{"no", []string{`{"action":"decline"}`, `{"action":"received"}`}, false},
	} {
		for _, withHook := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				mesh := meshtest.New(t)
				ann := newPeer(t, mesh, "ann")
				chris := mesh.Node("chris", func(cfg *node.Config) {
					unlimited(cfg)
					if withHook {
						configureHook(func(context.Context, hook.Call) (hook.Answer, error) { return hook.Answer{}, nil })(cfg)
					}
				})
				out := outgoing(t, ann.ID, wire.Schedule, propose)
				out.Conv = "conv_one"
				ann.answers(ann.says(counter))
				mustSend(t, chris.Node, out, 10*time.Second)
				ann.answers(func(w http.ResponseWriter, m wire.Message) {
					w.WriteHeader(http.StatusAccepted)
					w.Write(ann.Sign(ann.reply(m, `{"action":"pending_approval"}`)))
				})
				out.Payload = parsePayload(t, `{"action":"accept"}`)
				if sent := mustSend(t, chris.Node, out, 10*time.Second); sent.Status != http.StatusAccepted {
					t.Fatalf("accept: %+v", sent)
				}
				ann.answers(ann.says(`{"action":"close","status":"completed"}`))
				for _, payload := range c.after {
					must(t, chris.Post(ann.Sign(in("conv_one", ann.Draft(chris.ID(), wire.Schedule, payload)))), http.StatusOK)
				}
				if c.closes {
					waitFor(t, "the close leaves", func() bool {
						got := ann.got()
						return got[len(got)-1].Action() == wire.ActionClose
					})
				}
				state := convState(t, chris.Store, out)
				if got := state == conversations.Completed; got != c.closes {
					t.Errorf("conversation is %s, want it closed: %v", state, c.closes)
				}
			})
		}
	}
}

// TestOvertakenAcceptIsTaken (AM-88): the peer's owner approves our accept while a counter of ours is on its way. The
// peer has an agreement then, so we have it too.
func TestOvertakenAcceptIsTaken(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	chris := mesh.Node("chris", unlimited)
	out := outgoing(t, ann.ID, wire.Schedule, propose)
	out.Conv = "conv_one"
	ann.answers(ann.says(`{"action":"counter","event":{"proposed_times":["2026-02-22T10:00:00Z"]}}`))
	mustSend(t, chris.Node, out, 10*time.Second)
	ann.answers(func(w http.ResponseWriter, m wire.Message) {
		w.WriteHeader(http.StatusAccepted)
		w.Write(ann.Sign(ann.reply(m, `{"action":"pending_approval"}`)))
	})
	out.Payload = parsePayload(t, `{"action":"accept"}`)
	accept := mustSend(t, chris.Node, out, 10*time.Second)
	out.Payload = parsePayload(t, `{"action":"counter","event":{"proposed_times":["2026-02-23T10:00:00Z"]}}`)
	mustSend(t, chris.Node, out, 10*time.Second)

	answer := `{"action":"received","metadata":{"in_reply_to":"` + string(accept.MessageID) + `"}}`
	must(t, chris.Post(ann.Sign(in("conv_one", ann.Draft(chris.ID(), wire.Schedule, answer)))), http.StatusOK)
	if v := showConversation(t, chris, "conv_one"); v.Agreement == nil || v.Agreement.Time != "2026-02-22T10:00:00Z" {
		t.Errorf("agreed %+v", v.Agreement)
	}
}
