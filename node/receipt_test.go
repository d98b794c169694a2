package node_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestReceiptsAreNoNews (AM-91): what only confirms a message of ours is not new for page, status and agent, and no
// hook gets it, whether it is a reply on the connection, a message or one that the owner released.
func TestReceiptsAreNoNews(t *testing.T) {
	for _, c := range []struct {
		payload string
		isNews  bool
	}{
		{`{"action":"received"}`, false},
		{`{"action":"confirmed","status":"ok","metadata":{"n":1}}`, false},
		{`{"action":"acknowledged","reason":"busy","estimated_response":"2036-02-21T10:00:00Z"}`, false},
		{`{"action":"pending_approval"}`, false},
		{`{"action":"confirmed","message":{"body":"but bring a jumper"}}`, true},
		{`{"action":"received","note":"see you"}`, true},
		{`{"action":"deliver","message":{"body":"hello"}}`, true},
	} {
		for _, way := range []string{"reply", "message", "named", "held"} {
			t.Run(way+" "+c.payload, func(t *testing.T) {
				mesh := meshtest.New(t)
				ann := newPeer(t, mesh, "ann")
				ann.answers(ann.says(`{"action":"received"}`))
				var runs atomic.Int32
				sarah := mesh.Node("sarah", func(cfg *node.Config) {
					if way == "held" {
						cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.message", Direction: acl.In, Hold: acl.Always}}
						return
					}
					cfg.Policy.Mode = acl.Open
					cfg.Routes = []node.Route{{Pattern: "*", Name: "test", Replies: true, Handler: handler(func(context.Context, hook.Call) (hook.Answer, error) {
						runs.Add(1)
						return hook.Answer{}, nil
					})}}
				})
				payload := parsePayload(t, c.payload)
				switch way {
				case "reply":
					ann.answers(ann.says(c.payload))
					mustSend(t, sarah.Node, ann.message(t, "hi"), 10*time.Second)
				case "named": // in a conversation that the peer opened
					must(t, sarah.Post(ann.Sign(in("conv_1", ann.Draft(sarah.ID(), wire.Deliver, `{"action":"received","metadata":{"in_reply_to":"msg_0"}}`)))), http.StatusOK)
					must(t, sarah.Post(ann.Sign(in("conv_1", ann.Draft(sarah.ID(), wire.Deliver, string(inReplyTo(payload, "msg_1").JSON()))))), http.StatusOK)
				default:
					sent := mustSend(t, sarah.Node, ann.message(t, "hi"), 10*time.Second)
					status := map[bool]int{true: http.StatusAccepted, false: http.StatusOK}[way == "held"]
					must(t, sarah.Post(ann.Sign(in("conv_1", ann.Draft(sarah.ID(), wire.Deliver, string(inReplyTo(payload, sent.MessageID).JSON()))))), status)
					if way == "held" {
						asks, _, err := sarah.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
						if err != nil || len(asks) != 1 {
							t.Fatal(asks, err)
						}
						if _, err := sarah.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
							t.Fatal(err)
						}
					}
				}
				awaitTrue(t, func() bool { return c.isNews == (runs.Load() > 0 || isNew(t, sarah)) })
				if !c.isNews && (isNew(t, sarah) || runs.Load() > 0) {
					t.Errorf("new: %v, runs: %d", isNew(t, sarah), runs.Load())
				}
				if n := len(ann.got()); !c.isNews && n > 1 {
					t.Errorf("the peer got %d messages: the receipt was answered", n)
				}
			})
		}
	}
}

// isNew reports whether an item is new, and checks that list, status and page count the same.
func isNew(t *testing.T, m *meshtest.Member) bool {
	t.Helper()
	items, _, err := m.Inbox(t.Context(), owner.ItemNew, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	var s owner.Status
	m.Call("GET", "/status", nil, &s)
	again, _, err := m.Inbox(t.Context(), owner.ItemNew, "", 10)
	if err != nil || len(again) != len(items) { // a hook ended meanwhile
		return isNew(t, m)
	}
	if s.Inbox != len(items) || s.NeedsOwner > len(items) {
		t.Errorf("status counts %d new items and %d for the owner, the inbox has %d", s.Inbox, s.NeedsOwner, len(items))
	}
	return len(items) > 0
}

// TestConfirmingAcceptIsNoNews (AM-91): an accept that only confirms our accept is read at once, and the agreement is
// made. An accept with anything more is news.
func TestConfirmingAcceptIsNoNews(t *testing.T) {
	for _, way := range []string{"reply", "message"} {
		for payload, isNews := range map[string]bool{
			`{"action":"accept"}`: false,
			`{"action":"accept","selected_time":"2036-02-21T10:00:00-08:00"}`: false,
			`{"action":"accept","location":"My house"}`:                       true,
			`{"action":"accept","message":"bring cake"}`:                      true,
		} {
			t.Run(way+" "+payload, func(t *testing.T) {
				mesh := meshtest.New(t)
				ann := newPeer(t, mesh, "ann")
				sarah := mesh.Node("sarah", func(cfg *node.Config) { open(cfg); withBook(cfg) })
				ann.answers(ann.says(`{"action":"received"}`))
				must(t, sarah.Post(ann.Sign(in("conv_1", ann.Draft(sarah.ID(), wire.Schedule, proposeCoffee)))), http.StatusOK)
				items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
				if err != nil || len(items) != 1 {
					t.Fatalf("%v, %v", items, err)
				}
				if _, err := sarah.Acknowledge(t.Context(), items[0].ID); err != nil {
					t.Fatal(err)
				}
				if way == "reply" {
					ann.answers(ann.says(payload))
				} else {
					ann.answers(ann.says(`{"action":"pending_approval"}`))
				}
				accept := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept"}`)
				accept.Conv = "conv_1"
				sent := mustSend(t, sarah.Node, accept, 10*time.Second)
				if way == "message" {
					must(t, sarah.Post(ann.Sign(in("conv_1", ann.Draft(sarah.ID(), wire.Schedule, string(inReplyTo(parsePayload(t, payload), sent.MessageID).JSON()))))), http.StatusOK)
				}
				if got := isNew(t, sarah); got != isNews {
					t.Errorf("new: %v", got)
				}
				if !isNews && !isAgreed(t, sarah, "conv_1") {
					t.Error("there is no agreement")
				}
			})
		}
	}
}

// TestConfirmingAcceptFailsNothing: an accept that confirms ours with a text goes to the hook, but the agreement stands
// whether or not the hook can answer: the item never becomes a failed one.
func TestConfirmingAcceptFailsNothing(t *testing.T) {
	for _, way := range []string{"reply", "message"} {
		for name, answer := range map[string]hook.Answer{"late": {Payload: new(parsePayload(t, `{"action":"deliver","message":{"body":"good"}}`))}, "fails": {}} {
			t.Run(way+" "+name, func(t *testing.T) {
				mesh := meshtest.New(t)
				ann := newPeer(t, mesh, "ann")
				isClosed, ended := make(chan struct{}), make(chan struct{})
				sarah := mesh.Node("sarah", func(cfg *node.Config) {
					open(cfg)
					withBook(cfg)
					cfg.Routes = []node.Route{{Pattern: "*", Name: "test", Replies: true, Handler: handler(func(_ context.Context, c hook.Call) (hook.Answer, error) {
						if c.Message.Payload.GetStr("message") == "" {
							return hook.Answer{Async: true}, nil
						}
						defer close(ended)
						if name == "fails" {
							return hook.Answer{}, errors.New("broken")
						}
						<-isClosed
						return answer, nil
					})}}
				})
				ann.answers(ann.says(`{"action":"received"}`))
				opening := outgoing(t, ann.ID, wire.Schedule, proposeCoffee)
				sent := mustSend(t, sarah.Node, opening, 10*time.Second)
				move := parsePayload(t, `{"action":"counter","event":{"proposed_times":["2036-02-21T14:00:00-08:00"]}}`)
				must(t, sarah.Post(ann.Sign(in(sent.Conversation, ann.Draft(sarah.ID(), wire.Schedule, string(inReplyTo(move, sent.MessageID).JSON()))))), http.StatusAccepted)
				accept := outgoing(t, ann.ID, wire.Schedule, `{"action":"accept","selected_time":"2036-02-21T14:00:00-08:00"}`)
				accept.Conv = sent.Conversation
				confirm := `{"action":"accept","message":"bring cake"}`
				if way == "reply" {
					ann.answers(ann.says(confirm))
					mustSend(t, sarah.Node, accept, 10*time.Second)
				} else {
					ann.answers(ann.says(`{"action":"pending_approval"}`))
					first := mustSend(t, sarah.Node, accept, 10*time.Second)
					ann.answers(ann.says(`{"action":"received"}`))
					var posting sync.WaitGroup
					defer posting.Wait()
					posting.Go(func() {
						sarah.Post(ann.Sign(in(sent.Conversation, ann.Draft(sarah.ID(), wire.Schedule, string(inReplyTo(parsePayload(t, confirm), first.MessageID).JSON())))))
					})
				}
				if name == "late" {
					time.Sleep(200 * time.Millisecond) // the peer ends the conversation before our hook answers
					must(t, sarah.Post(ann.Sign(in(sent.Conversation, ann.Draft(sarah.ID(), wire.Schedule, `{"action":"close","status":"completed"}`)))), http.StatusOK)
					awaitTrue(t, func() bool { return showConversation(t, sarah, sent.Conversation).State == conversations.Completed })
				}
				close(isClosed)
				<-ended
				awaitTrue(t, func() bool { return isAgreed(t, sarah, sent.Conversation) })
				awaitTrue(t, func() bool {
					items, _, err := sarah.Inbox(t.Context(), "", "", 10)
					return err == nil && !slices.ContainsFunc(items, func(i node.Item) bool { return i.State == owner.ItemRunning })
				})
				if failed, _, err := sarah.Inbox(t.Context(), owner.ItemFailed, "", 10); err != nil || len(failed) > 0 {
					t.Errorf("failed: %+v, %v", failed, err)
				}
			})
		}
	}
}
