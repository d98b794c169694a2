//go:build slow

package node_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// couple is two nodes in a synctest bubble, whose owners approve what they are asked.
type couple struct {
	t            *testing.T
	mesh         *meshtest.Mesh
	chris, sarah *meshtest.Member
	approvals    map[string]int // by owner

	mu     sync.Mutex
	nodes  map[string]*meshtest.Member
	asleep map[string]bool
	runs   map[string]int // of each hook
}

func newCouple(t *testing.T) *couple {
	c := &couple{t: t, approvals: map[string]int{}, nodes: map[string]*meshtest.Member{}, asleep: map[string]bool{}, runs: map[string]int{}}
	c.mesh = meshtest.Wired(t, func(to string, w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		m, isOff := c.nodes[to], c.asleep[to]
		c.mu.Unlock()
		if isOff || m == nil {
			w.WriteHeader(http.StatusServiceUnavailable) // as a proxy before the node
			return
		}
		m.Public.ServeHTTP(w, r)
	})
	return c
}

func (c *couple) add(m *meshtest.Member) *meshtest.Member {
	m.Start()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[m.Name] = m
	return m
}

func (c *couple) sleeps(name string, yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asleep[name] = yes
}

// hook returns a route to a program that needs a while for its answer.
func (c *couple) hook(name, intent string, works time.Duration, answers func(run int, payload wire.Value) string) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.Policy.Mode, cfg.Policy.Hold = acl.Approval, nil
		cfg.Routes = []node.Route{{Pattern: intent, Name: "program", Replies: true, Repeatable: true, Handler: handler(func(ctx context.Context, call hook.Call) (hook.Answer, error) {
			select {
			case <-time.After(works):
			case <-ctx.Done():
				return hook.Answer{}, ctx.Err()
			}
			c.mu.Lock()
			c.runs[name]++
			n := c.runs[name]
			c.mu.Unlock()
			if answer := answers(n, call.Message.Payload); answer != "" {
				return hook.Answer{Payload: new(parsePayload(c.t, answer))}, nil
			}
			return hook.Answer{}, nil
		})}}
	}
}

// passes lets time pass, in which the owners approve what they are asked.
func (c *couple) passes(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
		for _, m := range []*meshtest.Member{c.chris, c.sarah} {
			for _, ask := range held(c.t, m) {
				if ask.Behind == "" {
					answerAsk(c.t, m, ask, acl.Approve)
					c.approvals[m.Name]++
				}
			}
		}
	}
}

// isQuiet checks that nothing is open, failed or waiting at either side.
func (c *couple) isQuiet() {
	c.t.Helper()
	for _, m := range []*meshtest.Member{c.chris, c.sarah} {
		for _, state := range []owner.ItemState{owner.ItemFailed, owner.ItemRunning, owner.ItemWaiting, owner.ItemInterrupted, owner.ItemHeld} {
			if items, _, err := m.Inbox(c.t.Context(), state, "", 10); len(items) != 0 || err != nil {
				c.t.Errorf("%s has %d items %s: %v", m.Name, len(items), state, err)
			}
		}
		for _, state := range []owner.SendState{owner.SendQueued, owner.SendFailed} {
			if entries, _, err := m.Outbox(c.t.Context(), state, "", 10); len(entries) != 0 || err != nil {
				c.t.Errorf("%s has messages %s: %+v, %v", m.Name, state, entries, err)
			}
		}
		if asks := held(c.t, m); len(asks) != 0 {
			c.t.Errorf("%s is asked %+v", m.Name, asks)
		}
	}
}

// TestCoffeeAlone (AM-90 to AM-93, AM-97) plays the flow of the specification (§10) with two programs and the default
// configuration. All that a person does is to let the stranger in.
func TestCoffeeAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		works   time.Duration
		asleep  string // is off for an hour after each message that the other sent
		restart bool   // of both, while a program runs
	}{
		"at once":           {},
		"25 s":              {works: 25 * time.Second},
		"3 min":             {works: 3 * time.Minute},
		"Sarah is off":      {asleep: "sarah"},
		"Chris is off":      {asleep: "chris"},
		"restart":           {works: 3 * time.Minute, restart: true},
		"Chris is off, too": {works: 25 * time.Second, asleep: "chris", restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t)
				atChris := c.hook("chris", "mesh.schedule", tt.works, func(_ int, p wire.Value) string {
					if p.GetStr("action") == "counter" {
						return `{"action":"accept"}`
					}
					return ""
				})
				atSarah := c.hook("sarah", "mesh.schedule", tt.works, func(_ int, p wire.Value) string {
					if p.GetStr("action") == "accept" {
						return `{"action":"accept"}`
					}
					return `{"action":"counter","event":{"selected_time":"2036-02-21T10:00:00-08:00","duration":"45m","location":"Sightglass Coffee, SoMa"}}`
				})
				c.chris, c.sarah = c.add(c.mesh.Node("chris", atChris)), c.add(c.mesh.Node("sarah", atSarah))
				if tt.asleep == "sarah" {
					c.sleeps("sarah", true)
				}
				sent, err := c.chris.Send(t.Context(), outgoing(t, c.sarah.ID(), wire.Schedule, proposeSeveral), 0)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				c.sleeps("chris", tt.asleep == "chris")
				c.passes(time.Minute)
				if tt.restart {
					c.chris.Stop()
					c.sarah.Stop()
					time.Sleep(time.Minute)
					c.chris, c.sarah = c.add(c.mesh.Restart(c.chris, atChris)), c.add(c.mesh.Restart(c.sarah, atSarah))
				}
				c.passes(time.Hour)
				c.sleeps(tt.asleep, false)
				c.passes(2 * time.Hour)
				for _, m := range []*meshtest.Member{c.chris, c.sarah} {
					v := showConversation(t, m, sent.Conversation)
					if v.State != conversations.Completed || v.Agreement == nil || v.Agreement.Duration != "45m" || len(agreedEvents(t, m)) != 1 || countAgreed(t, m) != 1 {
						t.Errorf("%s: %s, agreed on %+v, events %v, %d notices", m.Name, v.State, v.Agreement, agreedEvents(t, m), countAgreed(t, m))
					}
				}
				c.isQuiet()
				if c.approvals["chris"] != 0 || c.approvals["sarah"] != 1 {
					t.Errorf("approvals: %v", c.approvals)
				}
				c.chris.Stop()
				c.sarah.Stop()
			})
		})
	}
}

// TestFiniteTalksEnd (AM-90 to AM-94): whatever ends by itself after at most ten messages ends by itself, with quick and
// with slow programs, and needs no owner but for what the rules hold.
func TestFiniteTalksEnd(t *testing.T) {
	t.Parallel()
	counters := func(last int, accept string) func(int, wire.Value) string {
		return func(run int, p wire.Value) string {
			switch action := p.GetStr("action"); {
			case action == "accept", action == "decline", action == "reject":
				return ""
			case run > last:
				return accept
			}
			if terms, ok := p.Get("terms"); ok {
				return fmt.Sprintf(`{"action":"counter","terms":{"description":"A website","price":"$%d of %d"}}`, run, len(terms.GetStr("price")))
			}
			return fmt.Sprintf(`{"action":"counter","event":{"selected_time":"2036-02-21T10:%02d:00-08:00"}}`, 10+run)
		}
	}
	says := func(last int, payload string) func(int, wire.Value) string {
		return func(run int, _ wire.Value) string {
			if run > last {
				return ""
			}
			return strings.ReplaceAll(payload, "N", fmt.Sprint(run))
		}
	}
	silent := says(0, "")
	type talk struct {
		name         string
		intent       wire.Intent
		opens        string
		chris, sarah func(int, wire.Value) string
		asks         int // approvals of both owners
		state        conversations.State
	}
	talks := []talk{
		{"declined", wire.Schedule, proposeSeveral, silent, counters(0, `{"action":"decline"}`), 1, conversations.Open},
		{"declined later", wire.Schedule, proposeSeveral, counters(2, `{"action":"decline"}`), counters(9, ""), 1, conversations.Open},
		{"cancelled", wire.Schedule, proposeSeveral, counters(0, `{"action":"cancel"}`), counters(9, ""), 1, conversations.Open},
		{"nothing to say", wire.Schedule, proposeSeveral, silent, silent, 1, conversations.Open},
		{"a question", wire.RequestInfo, `{"action":"ask","question":"where?"}`, silent, says(1, `{"action":"answer","answer":"here"}`), 1, conversations.Open},
		{"a text", wire.Deliver, hello, silent, says(1, hello), 1, conversations.Open},
		{"ten texts", wire.Deliver, hello, says(4, `{"action":"deliver","message":{"body":"N"}}`), says(5, `{"action":"deliver","message":{"body":"also N"}}`), 1, conversations.Open},
		{"the same text", wire.Deliver, hello, says(4, hello), says(5, hello), 1, conversations.Open},
		{"custom", booking, `{"seats":"2"}`, says(1, `{"table":"N"}`), says(2, `{"seats":"N"}`), 1, conversations.Open},
	}
	for n := range 4 { // 3 to 10 messages with the accept
		talks = append(talks,
			talk{fmt.Sprint("Sarah accepts after ", n), wire.Schedule, proposeCoffee, counters(9, ""), counters(n, `{"action":"accept"}`), 1, conversations.Completed},
			talk{fmt.Sprint("Chris accepts after ", n), wire.Schedule, proposeSeveral, counters(n, `{"action":"accept"}`), counters(9, ""), 1, conversations.Completed},
			talk{fmt.Sprint("Sarah accepts a deal after ", n), wire.Negotiate, proposeDeal, counters(9, ""), counters(n, `{"action":"accept"}`), -1, conversations.Completed},
		)
	}
	for _, works := range []time.Duration{0, 25 * time.Second} {
		for _, tt := range talks {
			t.Run(fmt.Sprint(tt.name, " ", works), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCouple(t)
					make := func(name string, answers func(int, wire.Value) string) *meshtest.Member {
						return c.add(c.mesh.Node(name, func(cfg *node.Config) {
							withBooking(cfg)
							c.hook(name, "*", works, answers)(cfg)
						}))
					}
					c.chris, c.sarah = make("chris", tt.chris), make("sarah", tt.sarah)
					c.ends(tt.intent, parsePayload(t, tt.opens), tt.asks, tt.state)
				})
			})
		}
	}
	t.Run("two calendars", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, day, limits := newCouple(t), workday(), calendar.Limits{Accept: true, Strangers: true}
			c.chris = c.add(c.mesh.Node("chris", scheduling(t, day, 12, 13, limits)))
			c.sarah = c.add(c.mesh.Node("sarah", scheduling(t, day, 9, 12, limits)))
			c.ends(wire.Schedule, coffee(t, day.Add(10*time.Hour)), 0, conversations.Completed)
		})
	})
}

// ends plays a talk and checks that it has ended after an hour. asks is the number of approvals, or negative if the rules
// of the intent hold some.
func (c *couple) ends(intent wire.Intent, opens wire.Value, asks int, state conversations.State) {
	t := c.t
	t.Helper()
	sent, err := c.chris.Send(t.Context(), node.Outgoing{To: c.sarah.ID(), Intent: intent, Payload: opens, Via: "owner"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.passes(time.Hour)
	runs := fmt.Sprint(c.runs)
	if c.runs["chris"] > 10 || c.runs["sarah"] > 10 {
		t.Errorf("runs: %s", runs)
	}
	c.isQuiet()
	if total := c.approvals["chris"] + c.approvals["sarah"]; asks >= 0 && total != asks || asks < 0 && total < 2 {
		t.Errorf("approvals: %v", c.approvals)
	}
	for _, m := range []*meshtest.Member{c.chris, c.sarah} {
		if v := showConversation(t, m, sent.Conversation); v.State != state {
			t.Errorf("%s: %s, want %s", m.Name, v.State, state)
		}
	}
	c.passes(time.Hour)
	if again := fmt.Sprint(c.runs); again != runs {
		t.Errorf("runs went on: %s, then %s", runs, again)
	}
	c.chris.Stop()
	c.sarah.Stop()
}
