package node_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// slowly is a calendar without events that takes a second to read.
type slowly struct{}

func (slowly) Name() string { return "slow" }

func (slowly) Busy(context.Context, calendar.Interval, *time.Location) ([]calendar.Interval, []calendar.Problem, error) {
	time.Sleep(time.Second)
	return nil, nil, nil
}

// TestLastPlaceOfAMandate: of two conversations that look at the same time whether the peer has a place left, one gets
// it, and the other waits for the owner, whoever answers.
func TestLastPlaceOfAMandate(t *testing.T) {
	t.Parallel()
	accept, err := wire.Parse([]byte(`{"action":"accept"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []string{"hook", "agent"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				sarah := mesh.Node("sarah", func(cfg *node.Config) {
					open(cfg)
					planner, err := calendar.NewPlanner(calendar.Config{Sources: []calendar.Source{slowly{}}})
					if err != nil {
						t.Fatal(err)
					}
					cfg.Calendar = &calendar.Scheduler{Planner: planner, Book: calendar.NewBook(calendar.BookConfig{Records: cfg.Store.Records()})}
					cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.schedule", Hold: acl.Always, Name: "short meetings", Unless: acl.Mandate{
						Peers: []string{string(chris.ID)}, Calendar: "free", Length: time.Hour, PerPeerDay: 1,
					}}}
					if by == "hook" {
						cfg.Routes = []node.Route{{Pattern: "mesh.schedule", Name: "agent", Handler: handler(func(context.Context, hook.Call) (hook.Answer, error) {
							return hook.Answer{Payload: &accept}, nil
						})}}
					}
				})
				var both sync.WaitGroup
				for i, conv := range []wire.ConversationID{"conv_1", "conv_2"} {
					payload := coffee(t, workday().Add(time.Duration(13+2*i)*time.Hour))
					both.Go(func() {
						if by == "hook" {
							sarah.Post(chris.Sign(in(conv, chris.Draft(sarah.ID(), wire.Schedule, string(payload.JSON())))))
							return
						}
						out := node.Outgoing{To: chris.ID, Conv: conv, Intent: wire.Schedule, Payload: payload, Via: "agent"}
						if _, err := sarah.Send(t.Context(), out, 0); err != nil {
							t.Error(err)
						}
					})
				}
				both.Wait()
				if asks := pendingAsks(t, sarah); len(asks) != 1 || asks[0].Rule != "hold=mesh.schedule" {
					t.Errorf("questions: %+v, want one", asks)
				}
			})
		})
	}
}

// TestShortMeetings: under a hold rule with a mandate, the agent makes the appointments alone that the mandate allows,
// and the audit log has each. Everything else waits.
func TestShortMeetings(t *testing.T) {
	t.Parallel()
	const rule = "unless=short meetings"
	accept, err := wire.Parse([]byte(`{"action":"accept"}`))
	if err != nil {
		t.Fatal(err)
	}
	type world struct {
		sarah *meshtest.Member
		chris *meshtest.Stranger
		day   time.Time
	}
	propose := func(t *testing.T, w world, conv wire.ConversationID, hour int, change func(event wire.Value) wire.Value) meshtest.Answer {
		payload := coffee(t, w.day.Add(time.Duration(hour)*time.Hour))
		if change != nil {
			event, _ := payload.Get("event")
			payload = payload.With("event", change(event))
		}
		return w.sarah.Post(w.chris.Sign(in(conv, w.chris.Draft(w.sarah.ID(), wire.Schedule, string(payload.JSON())))))
	}
	for _, tt := range []struct {
		name  string
		named bool
		does  func(t *testing.T, w world) meshtest.Answer
		asks  string // the rule of the only question, or ""
		uses  int
	}{
		{"within", true, func(t *testing.T, w world) meshtest.Answer { return propose(t, w, "conv_1", 13, nil) }, "", 1},
		{"busy", true, func(t *testing.T, w world) meshtest.Answer { return propose(t, w, "conv_1", 9, nil) }, "hold=mesh.schedule", 0},
		{"too long", true, func(t *testing.T, w world) meshtest.Answer {
			return propose(t, w, "conv_1", 13, func(e wire.Value) wire.Value { return e.With("duration", wire.Text("2h")) })
		}, "hold=mesh.schedule", 0},
		{"their place", true, func(t *testing.T, w world) meshtest.Answer {
			return propose(t, w, "conv_1", 13, func(e wire.Value) wire.Value { return e.With("location", wire.Text("my cellar")) })
		}, "hold=mesh.schedule", 0},
		{"twice in one conversation", true, func(t *testing.T, w world) meshtest.Answer {
			propose(t, w, "conv_1", 13, nil)
			return propose(t, w, "conv_1", 14, nil)
		}, "", 2},
		{"a third conversation within a day", true, func(t *testing.T, w world) meshtest.Answer {
			propose(t, w, "conv_1", 13, nil)
			time.Sleep(12 * time.Hour)
			propose(t, w, "conv_2", 14, nil)
			return propose(t, w, "conv_3", 15, nil)
		}, "hold=mesh.schedule", 2},
		{"a third conversation on the next day", true, func(t *testing.T, w world) meshtest.Answer {
			propose(t, w, "conv_1", 13, nil)
			propose(t, w, "conv_2", 14, nil)
			time.Sleep(25 * time.Hour)
			return propose(t, w, "conv_3", 15, nil)
		}, "", 3},
		{"a peer that the rule does not name", false, func(t *testing.T, w world) meshtest.Answer {
			return propose(t, w, "conv_1", 13, nil)
		}, "hold=mesh.schedule", 0},
		{"an appointment that the agent proposes", true, func(t *testing.T, w world) meshtest.Answer {
			out := node.Outgoing{To: w.chris.ID, Intent: wire.Schedule, Payload: coffee(t, w.day.Add(13*time.Hour)), Via: "agent"}
			mustSend(t, w.sarah.Node, out, 0)
			out.Payload = coffee(t, w.day.Add(9*time.Hour)) // she is busy
			if sent, err := w.sarah.Send(t.Context(), out, 0); err != nil || sent.State != owner.SendHeld {
				t.Errorf("sent: %+v, %v", sent, err)
			}
			return meshtest.Answer{}
		}, "hold=mesh.schedule", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				w := world{chris: mesh.Stranger("chris"), day: workday()}
				w.sarah = mesh.Node("sarah", func(cfg *node.Config) {
					scheduling(t, w.day, 9, 12, calendar.Limits{})(cfg)
					cfg.Calendar = cfg.Routes[0].Handler.(hook.Calendar).Scheduler
					cfg.Routes = []node.Route{{Pattern: "mesh.schedule", Name: "agent", Handler: handler(func(context.Context, hook.Call) (hook.Answer, error) {
						return hook.Answer{Payload: &accept}, nil
					})}}
					peers := []string{"am_nobody_at_all"}
					if tt.named {
						peers = []string{string(w.chris.ID)}
					}
					cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.schedule", Hold: acl.Always, Name: "short meetings", Unless: acl.Mandate{
						Peers: peers, Calendar: "free", Length: time.Hour, PerPeerDay: 2, Place: "ours", Places: []string{"Sightglass"},
					}}}
				})
				a := tt.does(t, w)
				if tt.asks == "" && (a.Status != http.StatusOK || a.Message(t, w.sarah).Action() != "accept") {
					t.Errorf("answer: %d %s", a.Status, a.Body)
				}
				switch asks := pendingAsks(t, w.sarah); {
				case tt.asks == "" && len(asks) != 0:
					t.Errorf("questions: %+v", asks)
				case tt.asks != "" && (len(asks) != 1 || asks[0].Rule != tt.asks):
					t.Errorf("questions: %+v, want one because of %s", asks, tt.asks)
				}
				entries, _, err := w.sarah.Audit().List(t.Context(), acl.AuditFilter{Kind: acl.AuditSent}, 0, 100, time.Now())
				uses := 0
				for _, e := range entries {
					if e.Rule == rule && e.Subject == string(w.chris.ID) && e.Conversation != "" {
						uses++
					}
				}
				if err != nil || uses != tt.uses {
					t.Errorf("the audit log has %d uses, %v, want %d", uses, err, tt.uses)
				}
			})
		})
	}
}
