//go:build slow

package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestNeverBeyondTheBounds (AM-92, AM-93): whatever random peers say in random conversations, and however a random agent
// answers them, no more runs start than any bound allows, the others wait behind one question for each bound, and nothing is
// promised that was not asked of the owner.
func TestNeverBeyondTheBounds(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playAgainstBounds(t, rand.New(rand.NewPCG(seed, 45))) })
		})
	}
}

func playAgainstBounds(t *testing.T, rng *rand.Rand) {
	var mu sync.Mutex // the handler draws and counts beside the test
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	bounds := rules.Autonomy{Conversation: 1 + draw(4), Door: 100, Peer: 1 + draw(6), Strangers: 100, Token: 100, Total: 2 + draw(9)}
	started := make(map[string]int) // by conversation, by peer, and in all
	mesh := meshtest.InMemory(t)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		open(cfg)
		withBook(cfg)
		cfg.Autonomy = &bounds
		cfg.Policy.Hold = nil
		cfg.Routes = []node.Route{{Pattern: "*", Name: "random", Replies: true, Repeatable: true, Handler: handler(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			if c.Attempt <= 1 {
				mu.Lock()
				started[string(c.Message.From)+"/"+string(c.Message.Conversation)]++
				started[string(c.Message.From)]++
				started[""]++
				mu.Unlock()
			}
			time.Sleep([]time.Duration{0, 3 * time.Second, 2 * time.Minute}[draw(3)])
			switch draw(5) {
			case 0:
				return hook.Answer{}, nil
			case 1:
				return hook.Answer{}, errors.New("broken")
			case 2:
				return hook.Answer{Async: true}, nil
			case 3:
				return hook.Answer{Payload: new(parsePayload(t, `{"action":"accept"}`))}, nil
			}
			return hook.Answer{Payload: new(parsePayload(t, fmt.Sprintf(`{"action":"deliver","message":{"body":"%d"}}`, draw(3))))}, nil
		})}}
	})
	sarah.Start()
	peers := []*meshtest.Stranger{mesh.Stranger("ann"), mesh.Stranger("bob"), mesh.Stranger("cyd")}
	for _, p := range peers {
		sarah.Call("POST", "/peers/"+string(p.ID), owner.PeerChange{Action: "allow"}, nil)
	}
	for range 60 {
		p := peers[draw(len(peers))]
		intent, payload := wire.Deliver, fmt.Sprintf(`{"action":"deliver","message":{"body":"%d"}}`, draw(4))
		if draw(3) == 0 {
			intent, payload = wire.Schedule, proposeCoffee
		}
		if draw(9) == 0 {
			intent, payload = wire.Negotiate, proposeBoat
		}
		body := p.Sign(in(wire.ConversationID(fmt.Sprint("conv_", draw(4))), p.Draft(sarah.ID(), intent, payload)))
		go func() {
			if a := sarah.Post(body); a.Status >= http.StatusInternalServerError && a.Status != http.StatusServiceUnavailable {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		}()
		time.Sleep(time.Duration(draw(5000)) * time.Millisecond)
	}
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	for where, n := range started {
		most, what := bounds.Total, "in all"
		switch {
		case where == "":
		case len(where) > 29: // an id and a conversation
			most, what = bounds.Conversation, "in one conversation"
		default:
			most, what = bounds.Peer, "with one peer"
		}
		if n > most {
			t.Errorf("%d runs %s, %d are allowed: %s", n, what, most, where)
		}
	}
	questions := make(map[string]int)
	for _, ask := range held(t, sarah) {
		switch ask.Rule {
		case "autonomy.conversation":
			questions[ask.Rule+" "+ask.Subject+" "+ask.Conv.ID]++
		case "autonomy.peer":
			questions[ask.Rule+" "+ask.Subject]++
		case "autonomy.total":
			questions[ask.Rule]++
		}
	}
	for about, n := range questions {
		if n > 1 {
			t.Errorf("%d questions about %s", n, about)
		}
	}
	for _, p := range peers {
		for n := range 4 {
			if promised(t, sarah, p.ID, n) {
				t.Errorf("the agent accepted an offer of %s in conv_%d without its owner", p.ID, n)
			}
		}
	}
	sarah.Stop()
}

// promised reports whether an accept of an offer left in a conversation.
func promised(t *testing.T, m *meshtest.Member, peer wire.AgentID, n int) bool {
	entries, err := m.Store.Steps().Transcript(t.Context(), store.ConvKey{Peer: string(peer), ID: fmt.Sprint("conv_", n)}, 0, 200)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if c, ok := conversations.ReadContent(e); ok && e.Out && c.Intent == wire.Negotiate && c.Payload.GetStr("action") == "accept" {
			return true
		}
	}
	return false
}
