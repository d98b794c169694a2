package node_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

const talk = `{"action":"request_human","reason":"talk"}`

// in returns a draft in a conversation of the test's choice.
func in(conv wire.ConversationID, d wire.Draft) wire.Draft {
	d.Conversation = conv
	return d
}

// TestTimeWindow (AM-20): both ends belong to the time window; a message a second beyond them is refused.
func TestTimeWindow(t *testing.T) {
	t.Parallel()
	cases := []struct {
		age    time.Duration
		status int
	}{
		{15 * time.Minute, http.StatusOK},
		{15*time.Minute + time.Second, http.StatusBadRequest},
		{-5 * time.Minute, http.StatusOK},
		{-5*time.Minute - time.Second, http.StatusBadRequest},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", open)
			d := chris.Draft(sarah.ID(), wire.Deliver, hello)
			d.Time = time.Now().Add(-c.age).Truncate(time.Millisecond)
			a := sarah.Post(chris.Sign(d))
			if a.Status != c.status {
				t.Errorf("age %s: %d %s, want %d", c.age, a.Status, a.Body, c.status)
			}
			if c.status != http.StatusOK && a.Code() != wire.InvalidMessage {
				t.Errorf("age %s: %s", c.age, a.Body)
			}
		})
	}
}

// TestRepeatAfterAnHour (AM-21): an exact repeat gets the stored bytes, whatever its age. Other bytes under the same
// id are refused for their age or, with a valid time, for the id.
func TestRepeatAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", open)
		d := chris.Draft(sarah.ID(), wire.Deliver, hello)
		raw := chris.Sign(d)
		first := sarah.Post(raw)
		must(t, first, http.StatusOK)
		for _, pause := range []time.Duration{time.Hour, 23 * time.Hour, 6 * 24 * time.Hour} { // also after the conversation expired
			time.Sleep(pause)
			if again := sarah.Post(raw); again.Status != first.Status || !bytes.Equal(again.Body, first.Body) {
				t.Errorf("repeat = %d %s, want %d %s", again.Status, again.Body, first.Status, first.Body)
			}
		}
		other := d
		other.Payload = d.Payload.With("x", wire.Int(1))
		if a := sarah.Post(chris.Sign(other)); a.Status != http.StatusBadRequest {
			t.Errorf("other bytes, stale: %d %s, want 400", a.Status, a.Body)
		}
		other.Time = time.Now()
		if a := sarah.Post(chris.Sign(other)); a.Status != http.StatusConflict || a.Code() != wire.InvalidMessage {
			t.Errorf("other bytes: %d %s, want 409", a.Status, a.Body)
		}
		if got, want := state(t, sarah), "1 items, 1 conversations, 0 asks"; got != want {
			t.Errorf("state = %s, want %s", got, want)
		}
	})
}

// TestConversationExpires (AM-38): a conversation expires exactly 24 h after its last message.
func TestConversationExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", open)
		post := func() meshtest.Answer {
			return sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello))))
		}
		listed := func() string {
			var got struct{ State string }
			sarah.Call("GET", "/conversations/conv_one", nil, &got)
			return got.State
		}
		must(t, post(), http.StatusOK)
		time.Sleep(24*time.Hour - time.Second)
		if got := listed(); got != "open" {
			t.Errorf("after 24 h - 1 s it is %s", got)
		}
		must(t, post(), http.StatusOK) // restarts the clock
		time.Sleep(24 * time.Hour)
		if got := listed(); got != "expired" {
			t.Errorf("after 24 h it is %s", got)
		}
		for _, payload := range []string{hello, closing} {
			a := sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, payload))))
			if a.Code() != wire.ConversationClosed {
				t.Errorf("%s after the expiry: %d %s", payload, a.Status, a.Body)
			}
		}
	})
}

// TestHoldSuspendsTheClock (AM-40): the 24 h do not run while a question to the owner is open.
func TestHoldSuspendsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", mode(acl.Approval))
		raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))
		must(t, sarah.Post(raw), http.StatusAccepted)
		time.Sleep(3 * 24 * time.Hour)
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
		must(t, sarah.Post(raw), http.StatusOK)
		time.Sleep(24*time.Hour - time.Second) // counted from the decision
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusOK)
		time.Sleep(24 * time.Hour)
		if a := sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))); a.Code() != wire.ConversationClosed {
			t.Errorf("after the expiry: %d %s", a.Status, a.Body)
		}
	})
}

// TestHoldExpires (AM-33): a question expires after exactly seven days, and then its sender may ask again.
func TestHoldExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", mode(acl.Approval))
		post := func() meshtest.Answer {
			return sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
		}
		must(t, post(), http.StatusAccepted)
		ask := theAsk(t, sarah)
		time.Sleep(node.DefaultHoldFor - time.Second)
		must(t, post(), http.StatusAccepted)
		if waiting := theAsk(t, sarah); waiting.ID != ask.ID {
			t.Error("a second before the end: another question")
		}
		time.Sleep(time.Second)
		now, err := sarah.Asks().Get(t.Context(), ask.ID, time.Now())
		if err != nil || now.State != acl.AskExpired {
			t.Errorf("ask = %s, %v, want %s", now.State, err, acl.AskExpired)
		}
		if status := sarah.Call("POST", "/approvals/"+ask.ID, map[string]string{"choice": "approve", "hash": ask.Hash}, nil); status != http.StatusConflict {
			t.Errorf("approve after the end: %d, want 409", status)
		}
		must(t, post(), http.StatusAccepted) // the slot is free
		if fresh := theAsk(t, sarah); fresh.ID == ask.ID {
			t.Error("the old question is pending again")
		}
	})
}

// TestLimits (AM-41): which message within an hour is refused, and with which Retry-After.
func TestLimits(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name       string
		rates      acl.Rates
		allowed    int
		retryAfter string
		draft      func(chris *meshtest.Stranger, to wire.AgentID, i int) wire.Draft
	}{
		{"11th conversation of a sender", acl.Rates{NewConversations: 10, Conversation: 60, Total: 100}, 10, "360",
			func(chris *meshtest.Stranger, to wire.AgentID, _ int) wire.Draft {
				return chris.Draft(to, wire.Deliver, hello)
			}},
		{"61st message of a conversation", acl.Rates{NewConversations: 10, Conversation: 60, Total: 100}, 60, "60",
			func(chris *meshtest.Stranger, to wire.AgentID, _ int) wire.Draft {
				return in("conv_one", chris.Draft(to, wire.Deliver, hello))
			}},
		{"101st message in all", acl.Rates{NewConversations: 10, Conversation: 60, Total: 100}, 100, "36",
			func(chris *meshtest.Stranger, to wire.AgentID, i int) wire.Draft {
				return in(wire.ConversationID(fmt.Sprintf("conv_%d", i%5)), chris.Draft(to, wire.Deliver, hello))
			}},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				cfg.Policy = acl.Policy{Mode: acl.Allowlist, Allow: []string{string(chris.ID)}} // a known peer may use the whole total
				cfg.Rates = c.rates
			})
			for i := range c.allowed {
				must(t, sarah.Post(chris.Sign(c.draft(chris, sarah.ID(), i))), http.StatusOK)
			}
			raw := chris.Sign(c.draft(chris, sarah.ID(), c.allowed))
			a := sarah.Post(raw)
			if a.Code() != wire.RateLimited || a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != c.retryAfter {
				t.Fatalf("%s: %d %s, Retry-After %q, want 429 after %s", c.name, a.Status, a.Body, a.Header.Get("Retry-After"), c.retryAfter)
			}
			wait, _ := time.ParseDuration(c.retryAfter + "s")
			time.Sleep(wait)
			must(t, sarah.Post(raw), http.StatusOK) // the same id succeeds: a refusal is not remembered (AM-21)
		})
	}
}

// TestStrangersGetHalf (AM-42): a peer that the owner knows is served, whatever strangers send. The source of these
// strangers is unknown, so they share one source, which leaves the last places to others.
func TestStrangersGetHalf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		friend := mesh.Stranger("friend")
		sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Allow = []string{string(friend.ID)} })
		served := 0
		for i := range 8 {
			stranger := mesh.Stranger(fmt.Sprintf("stranger-%d", i))
			for range 10 {
				if a := sarah.Post(stranger.Sign(stranger.Draft(sarah.ID(), wire.Deliver, hello))); a.Status == http.StatusOK {
					served++
				}
			}
		}
		if served != 50 {
			t.Errorf("strangers got %d messages in, want half of 100", served)
		}
		must(t, sarah.Post(friend.Sign(friend.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
	})
}

// TestLimitsAreOff: 0 switches a limit off, and an exempt sender has no limit (AM-44).
func TestLimitsAreOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		for name, configure := range map[string]func(*node.Config){
			"zero": unlimited,
			"exempt": func(cfg *node.Config) {
				cfg.Rates, cfg.Exempt = acl.Rates{NewConversations: 1, Conversation: 1, Total: 1}, []string{string(chris.ID)}
			},
		} {
			sarah := mesh.Node("sarah-"+name, configure)
			for range 120 {
				must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
			}
		}
	})
}

// TestLimitsSurviveARestart (AM-44): the used limits are stored once a minute, and when the node stops.
func TestLimitsSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, tom := mesh.Stranger("chris"), mesh.Stranger("tom")
		rates := func(cfg *node.Config) { cfg.Rates = acl.Rates{NewConversations: 2} }
		sarah := mesh.Node("sarah", rates)
		sarah.Start()
		post := func(to *meshtest.Member, from *meshtest.Stranger) meshtest.Answer {
			return to.Post(from.Sign(from.Draft(to.ID(), wire.Deliver, hello)))
		}
		for range 2 {
			must(t, post(sarah, chris), http.StatusOK)
		}
		time.Sleep(61 * time.Second)
		killed := mesh.Copy(sarah, rates) // a crash: only the last minute's state is stored
		if a := post(killed, chris); a.Code() != wire.RateLimited {
			t.Errorf("after a crash: %d %s", a.Status, a.Body)
		}
		must(t, post(sarah, tom), http.StatusOK)
		must(t, post(sarah, tom), http.StatusOK)
		again := mesh.Restart(sarah, rates)
		for _, from := range []*meshtest.Stranger{chris, tom} {
			if a := post(again, from); a.Code() != wire.RateLimited {
				t.Errorf("%s after a restart: %d %s", from.Name, a.Status, a.Body)
			}
		}
		time.Sleep(30 * time.Minute)
		must(t, post(again, chris), http.StatusOK)
	})
}
