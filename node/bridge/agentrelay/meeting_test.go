package agentrelay

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// busyCalendar is a calendar with one appointment.
type busyCalendar struct{ from, end time.Time }

func (busyCalendar) Name() string { return "test" }

func (b busyCalendar) Busy(context.Context, calendar.Interval, *time.Location) ([]calendar.Interval, []calendar.Problem, error) {
	return []calendar.Interval{{Start: b.from, End: b.end}}, nil, nil
}

// newUnreachable returns a node whose endpoint nobody can reach and which answers mesh.schedule from a calendar.
func newUnreachable(t *testing.T, mesh *meshtest.Mesh, name string, b busyCalendar, limits calendar.Limits) *meshtest.Member {
	t.Helper()
	return mesh.Node(name, func(cfg *node.Config) {
		cfg.Identity.Card = meshtest.Card(t, name, "http://127.0.0.1:9"+node.Path)
		book := calendar.NewBook(calendar.BookConfig{Records: cfg.Store.Records()})
		planner, err := calendar.NewPlanner(calendar.Config{Sources: []calendar.Source{b, book}})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Agreed = book
		cfg.Routes = []node.Route{{
			Pattern: string(wire.Schedule), Name: "calendar", Repeatable: true, Replies: true,
			Handler: hook.Calendar{Scheduler: &calendar.Scheduler{Planner: planner, Book: book, Limits: limits}},
		}}
	})
}

// TestMeetingThroughTunnel: two nodes that reach each other only over a relay agree on a meeting. With two calendars,
// the meeting is proposed, countered twice, accepted and closed. With an owner, it is proposed, held, approved,
// accepted and closed. Every message is signed, verified, and stored like any other message of the mesh (AR-59).
func TestMeetingThroughTunnel(t *testing.T) {
	day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 3)
	for day.Weekday() == time.Saturday || day.Weekday() == time.Sunday {
		day = day.AddDate(0, 0, 1)
	}
	at := func(hour int) time.Time { return day.Add(time.Duration(hour) * time.Hour) }
	byItself := calendar.Limits{Accept: true, Strangers: true}
	for _, tt := range []struct {
		name            string
		limits          calendar.Limits // of Sarah's calendar
		propose, agreed int             // hours
		asks            bool
		messages        int // at least
	}{
		{"two calendars", byItself, 10, 13, false, 4},
		{"an owner", calendar.Limits{}, 14, 14, true, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newTestBridge(t)
			mesh := meshtest.New(t)
			sarah := newUnreachable(t, mesh, "sarah", busyCalendar{at(9), at(12)}, tt.limits)
			chris := newUnreachable(t, mesh, "chris", busyCalendar{at(12), at(13)}, byItself)
			for from, to := range map[*meshtest.Member]*meshtest.Member{sarah: chris, chris: sarah} {
				b := linkNode(t, s, from, from.Name+"-node")
				identifyPeer(t, b, to.Name+"-node", to.ID())
			}
			payload, err := wire.Parse(fmt.Appendf(nil, `{"action":"propose","event":{"title":"Coffee","proposed_times":["%s"],"duration":"30 minutes"}}`,
				at(tt.propose).Format(time.RFC3339)))
			if err != nil {
				t.Fatal(err)
			}
			out := node.Outgoing{To: sarah.ID(), Intent: wire.Schedule, Payload: payload, Conv: "conv_coffee", Via: "owner"}
			if sent, err := chris.Send(t.Context(), out, patience); err != nil || sent.State != owner.SendDelivered || sent.Reply == nil {
				t.Fatalf("Send() = %+v, %v, want a verified reply", sent, err)
			}
			if tt.asks {
				asks, _, err := sarah.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
				if err != nil || len(asks) != 1 {
					t.Fatalf("%d questions for the owner, %v, want 1", len(asks), err)
				}
				if _, err := sarah.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			for _, m := range []*meshtest.Member{sarah, chris} {
				var c struct {
					State      string            `json:"state"`
					Transcript []json.RawMessage `json:"transcript"`
				}
				eventually(t, m.Name+" has completed the conversation", func() bool {
					m.Call("GET", "/conversations/conv_coffee", nil, &c)
					return c.State == string(conversations.Completed)
				})
				if len(c.Transcript) < tt.messages {
					t.Errorf("%s: %d messages, want at least %d", m.Name, len(c.Transcript), tt.messages)
				}
				var events []calendar.Event
				eventually(t, m.Name+" has an event", func() bool { // the book is written after the step
					if events, err = calendar.NewBook(calendar.BookConfig{Records: m.Store.Records()}).Events(t.Context(), time.Now()); err != nil {
						t.Fatal(err)
					}
					return len(events) > 0
				})
				if len(events) != 1 || events[0].Title != "Coffee" || !events[0].Start.Equal(at(tt.agreed)) {
					t.Errorf("%s: agreed events %+v, want coffee at %v", m.Name, events, at(tt.agreed))
				}
			}
			items, _, err := sarah.Inbox(t.Context(), "", "", 10)
			if err != nil || len(items) == 0 {
				t.Fatalf("sarah's inbox has %d messages, %v", len(items), err)
			}
			for _, item := range items {
				if item.Verified != bridge.VerifiedSignature || item.Peer != chris.ID() || item.Address != "" {
					t.Errorf("sarah has a message of %s, %s, %q: want it signed by chris", item.Peer, item.Verified, item.Address)
				}
			}
		})
	}
}

// TestTunnelTooLarge: a message that is too large for the tunnel fails for good, with the reason (AR-59).
func TestTunnelTooLarge(t *testing.T) {
	s := newTestBridge(t)
	mesh := meshtest.New(t)
	sarah, alex := mesh.Node("sarah", nil), mesh.Node("alex", nil)
	a := linkNode(t, s, sarah, "sarah-node")
	identifyPeer(t, a, "alex-node", alex.ID())
	payload, err := wire.Parse([]byte(`{"action":"deliver","message":{"body":"` + strings.Repeat("x", frame.MaxPayload) + `"}}`))
	if err != nil {
		t.Fatal(err)
	}
	sent, err := sarah.Send(t.Context(), node.Outgoing{To: alex.ID(), Intent: wire.Deliver, Payload: payload, Via: "owner"}, patience)
	if err != nil || sent.State != owner.SendFailed {
		t.Fatalf("Send() = %+v, %v, want it failed", sent, err)
	}
	entries, _, err := sarah.Outbox(t.Context(), "", "", 10)
	if err != nil || len(entries) != 1 || entries[0].Err == nil || !strings.Contains(entries[0].Err.Message, "60 KiB") {
		t.Errorf("the outbox does not say why: %+v, %v", entries[0].Err, err)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
