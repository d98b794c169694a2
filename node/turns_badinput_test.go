package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
)

// bounded makes a node that admits everybody and whose hook says nothing, with bounds that set changes. runs counts the runs.
func bounded(runs *atomic.Int32, set func(*rules.Autonomy)) func(*node.Config) {
	bounds := wide
	set(&bounds)
	return configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		runs.Add(1)
		return hook.Answer{}, nil
	}, unlimited, func(cfg *node.Config) { cfg.Autonomy = &bounds })
}

// askNotices counts the notices that ask the owner.
func askNotices(t *testing.T, m *meshtest.Member) (n int) {
	t.Helper()
	list, _, err := m.Notices.List(t.Context(), "", 1000, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, notice := range list {
		if notice.Ask != "" {
			n++
		}
	}
	return n
}

// turnsToday returns the turns of the day in all, as the owner sees them.
func turnsToday(t *testing.T, m *meshtest.Member) int {
	t.Helper()
	status, err := m.OwnerAPI().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range status.Autonomy {
		if b.Name == "total" {
			return b.Today.Used
		}
	}
	return -1
}

// TestTurnsOfAPeerThatChanges (AM-92, AM-93): a peer gets no more turns by new conversations, other words, other names or
// other networks, and the owner gets one question and one notice for each bound.
func TestTurnsOfAPeerThatChanges(t *testing.T) {
	const messages = 40
	for _, tt := range []struct {
		name string
		set  func(*rules.Autonomy)
		vary func(in *bridge.Inbound, i int)
		runs int32
		asks int
	}{
		{"a new conversation each time", func(a *rules.Autonomy) { a.Peer = 3 }, func(in *bridge.Inbound, i int) {
			in.ConvID = wire.NewConversationID()
		}, 3, 1},
		{"another letter each time", func(a *rules.Autonomy) { a.Conversation = 3 }, func(in *bridge.Inbound, i int) {
			in.Payload = hook.TextPayload(wire.Deliver, "hello"+string(rune('a'+i)))
		}, 3, 1},
		{"a caller with a token and as many contexts", func(a *rules.Autonomy) { a.Token, a.Conversation, a.Total = 5, 1, 0 }, func(in *bridge.Inbound, i int) {
			in.Verified, in.ConvID, in.Address, in.Principal = bridge.VerifiedBearer, wire.NewConversationID(), "a2a:in/caller", "a2a:in/caller"
		}, 5, 1},
		{"strangers of one network", func(a *rules.Autonomy) { a.Strangers = 8 }, func(in *bridge.Inbound, i int) {
			in.Peer, in.Principal = wire.AgentID(fmt.Sprintf("am_stranger%d", i)), fmt.Sprintf("am_stranger%d", i)
			in.Sources = []rate.Source{{Key: "10.1.0.0/16"}}
		}, 4, 1},
		{"strangers of many networks", func(a *rules.Autonomy) { a.Strangers = 8 }, func(in *bridge.Inbound, i int) {
			in.Peer, in.Principal = wire.AgentID(fmt.Sprintf("am_stranger%d", i)), fmt.Sprintf("am_stranger%d", i)
			in.Sources = []rate.Source{{Key: fmt.Sprintf("10.%d.0.0/16", i%20)}}
		}, 8, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			mesh := meshtest.New(t)
			var runs atomic.Int32
			sarah := mesh.Node("sarah", bounded(&runs, tt.set))
			conv := wire.NewConversationID()
			held, refused := 0, 0 // only a few messages may wait for one question
			for i := range messages {
				in := inbound(node.Outgoing{To: "am_peer", Conv: conv, Intent: wire.Deliver, Payload: parsePayload(t, hello)}, "am_peer", "")
				tt.vary(&in, i)
				switch out, err := sarah.Accept(t.Context(), in); {
				case errors.Is(err, wire.ErrHoldsFull):
					refused++
				case err != nil:
					t.Fatalf("message %d: %v", i, err)
				case out.Held:
					held++
				}
			}
			if n := runs.Load(); n != tt.runs || held == 0 || held+refused != messages-int(tt.runs) {
				t.Errorf("%d runs, %d messages wait, %d were refused; want %d runs", n, held, refused, tt.runs)
			}
			if asks, told := len(pendingAsks(t, sarah)), askNotices(t, sarah); asks != tt.asks || told != tt.asks {
				t.Errorf("%d questions and %d notices", asks, told)
			}
		})
	}
}

// TestKnownPeersKeepTheirTurns (THREATS row 42): after 50 strangers from 20 networks, three known peers get theirs.
func TestKnownPeersKeepTheirTurns(t *testing.T) {
	mesh := meshtest.New(t)
	var runs atomic.Int32
	known := []string{"am_one", "am_two", "am_three"}
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		bounded(&runs, func(a *rules.Autonomy) { a.Strangers, a.Total = 10, 10+3*5 })(cfg)
		cfg.Policy.Allow = known
	})
	accept := func(peer string, sources ...rate.Source) bridge.Outcome {
		t.Helper()
		in := inbound(node.Outgoing{To: wire.AgentID(peer), Conv: wire.NewConversationID(), Intent: wire.Deliver, Payload: parsePayload(t, hello)}, peer, "")
		in.Sources = sources
		out, err := sarah.Accept(t.Context(), in)
		if err != nil && !errors.Is(err, wire.ErrHoldsFull) {
			t.Fatalf("%s: %v", peer, err)
		}
		return out
	}
	for i := range 50 {
		accept(fmt.Sprintf("am_stranger%d", i), rate.Source{Key: fmt.Sprintf("10.%d.0.0/16", i%20)})
	}
	if n := runs.Load(); n != 10 {
		t.Fatalf("%d runs for strangers, want 10", n)
	}
	for range 5 {
		for _, peer := range known {
			if accept(peer).Held {
				t.Errorf("a message of %s waits", peer)
			}
		}
	}
	if n := runs.Load(); n != 10+3*5 {
		t.Errorf("%d runs", n)
	}
}

// TestDoorTurnsAtOnce (AM-92, AM-93): of many messages that the agent writes at once, only as many leave as it has turns.
// The owner gets one question and one notice, and grants as many turns again, or a day.
func TestDoorTurnsAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*rules.Autonomy)
		one  bool // all in one conversation
	}{
		{"conversation", func(a *rules.Autonomy) { a.Door = 3 }, true},
		{"peer", func(a *rules.Autonomy) { a.Peer = 3 }, false},
		{"total", func(a *rules.Autonomy) { a.Total = 3 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mesh := meshtest.New(t)
			ann := newPeer(t, mesh, "ann")
			ann.answers(ann.says(`{"action":"received"}`))
			bounds := wide
			tt.set(&bounds)
			sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Autonomy = &bounds })
			conv := wire.NewConversationID()
			write := func(when string, want int32) {
				t.Helper()
				var left, waits, refused atomic.Int32
				var all sync.WaitGroup
				for range 12 {
					all.Go(func() {
						body := map[string]any{"to": ann.ID, "intent": "mesh.message", "payload": map[string]any{"action": "deliver", "message": map[string]string{"body": "hi"}}}
						if tt.one {
							body["conversation"] = conv
						}
						var sent owner.Sent
						status := sarah.CallAgent("POST", "/send", body, &sent)
						for status == http.StatusConflict { // it lost against the others in this conversation
							status = sarah.CallAgent("POST", "/send", body, &sent)
						}
						switch {
						case status == http.StatusTooManyRequests:
							refused.Add(1)
						case status >= 300:
							t.Errorf("status %d", status)
						case sent.State == owner.SendHeld:
							waits.Add(1)
						default:
							left.Add(1)
						}
					})
				}
				all.Wait()
				if l, w, r := left.Load(), waits.Load(), refused.Load(); l != want || w != min(1, 12-want) || r != 12-l-w {
					t.Errorf("%s: %d left, %d waits, %d were refused, want %d to leave", when, l, w, r, want)
				}
			}
			write("at first", 3)
			if asks, told := pendingAsks(t, sarah), askNotices(t, sarah); len(asks) != 1 || told != 1 || asks[0].Rule != "autonomy."+tt.name {
				t.Fatalf("%d questions and %d notices", len(asks), told)
			}
			answerAsk(t, sarah, theAsk(t, sarah), acl.Approve)
			write("after as many again", 2) // the one that waited took a turn, too
			answerAsk(t, sarah, theAsk(t, sarah), acl.ApproveConversation)
			write("on a free day", 12)
		})
	}
}

// TestProcessesShareTurns (AM-92): processes of one node that reach a bound together do not pass it.
func TestProcessesShareTurns(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*rules.Autonomy){
		"conversation": func(a *rules.Autonomy) { a.Conversation = 4 },
		"peer":         func(a *rules.Autonomy) { a.Peer = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int32
			ps := startProcesses(t, 2, time.Millisecond, bounded(&runs, set))
			chris := ps.mesh.Stranger("chris")
			var all sync.WaitGroup
			for i := range 20 {
				d := chris.Draft(ps.all[0].ID(), wire.Deliver, hello)
				if name == "conversation" {
					d = in("conv_one", d)
				}
				body := chris.Sign(d)
				all.Go(func() {
					for range 10 { // a unit that lost against another one is a temporary refusal
						if a := ps.all[i%2].Post(body); a.Status < http.StatusInternalServerError {
							return
						}
					}
					t.Error("a message was never accepted")
				})
			}
			all.Wait()
			waitFor(t, "the turns are taken", func() bool { return runs.Load() == 4 })
			time.Sleep(50 * time.Millisecond)
			if n, used := runs.Load(), turnsToday(t, ps.all[1].Member); n != 4 || used != 4 {
				t.Errorf("%d runs and %d turns", n, used)
			}
			if n, told := len(pendingAsks(t, ps.all[0].Member)), askNotices(t, ps.all[0].Member); n != 1 || told != 1 {
				t.Errorf("%d questions and %d notices", n, told)
			}
		})
	}
}

// TestRestartTakesNoTurn (AM-92): a message takes one turn, although the process ends between the reservation and the end of
// the run, and again between the run and the delivery of the answer. The turns before stay used.
func TestRestartTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		d := in("conv_one", chris.Draft("", wire.Deliver, hello))
		m := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte { d.To = to; return chris.Sign(d) }))
		bounds := wide
		bounds.Conversation = 2
		for range 2 {
			conv, err := m.OwnerAPI().ReadTranscript(t.Context(), "conv_one", string(chris.ID), 0)
			if err != nil || turnsToday(t, m) != 1 || conv.Turns == nil || conv.Turns.Used != 1 {
				t.Errorf("before a restart: %d turns, %+v, %v", turnsToday(t, m), conv.Turns, err)
			}
			m = mesh.Restart(m, configureHook(func(context.Context, hook.Call) (hook.Answer, error) { return says(t, hello), nil }, unlimited, repeatable,
				func(cfg *node.Config) { cfg.Autonomy = &bounds }))
			m.Start()
			synctest.Wait()
		}
		for i, want := range []int{http.StatusOK, http.StatusAccepted} {
			d := in("conv_one", chris.Draft(m.ID(), wire.Deliver, hello))
			if a := m.Post(chris.Sign(d)); a.Status != want {
				t.Errorf("message %d: %d %s, want %d", i+2, a.Status, a.Body, want)
			}
		}
		if n := turnsToday(t, m); n != 2 {
			t.Errorf("%d turns", n)
		}
	})
}
