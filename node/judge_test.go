package node_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// judge is a guard that gives a verdict by the words of a text: "deny-me", "review-me", "crash-me". It remembers what it
// was asked.
type judge struct {
	mu     sync.Mutex
	asked  []string // peer and payload
	mended bool     // it judges what made it crash
}

func (j *judge) Ask(_ context.Context, q hook.Question) ([]byte, error) {
	v, err := wire.ParseObject(q.Document)
	if err != nil {
		return nil, err
	}
	peer, _ := v.Get("peer")
	message, _ := v.Get("message")
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = append(j.asked, peer.GetStr("agent_id")+" "+string(message.JSON()))
	decision := guard.Allow
	switch text := string(message.JSON()); {
	case strings.Contains(text, "crash-me") && !j.mended:
		return nil, fmt.Errorf("out of luck with %s", text)
	case strings.Contains(text, "deny-me"):
		decision = guard.Deny
	case strings.Contains(text, "review-me"):
		decision = guard.Review
	}
	return fmt.Appendf(nil, `{"digest":%q,"verdict":%q,"reason":"odd words"}`, v.GetStr("digest"), decision), nil
}

func (j *judge) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.asked)
}

// guarded makes a node ask j.
func guarded(j *judge, configure func(*guard.Guard)) func(*node.Config) {
	g := &guard.Guard{Hook: j, Settings: "1"}
	configure(g)
	return func(cfg *node.Config) {
		unlimited(cfg)
		cfg.Guard = g
	}
}

func judgesIn(g *guard.Guard)  { g.In = true }
func judgesOut(g *guard.Guard) { g.Out = true }

func text(body string) string {
	return string(hook.TextPayload(wire.Deliver, body).JSON())
}

// agentSees returns everything that the owner's agent can read of the conversations with a node.
func agentSees(t *testing.T, m *meshtest.Member) string {
	t.Helper()
	var all strings.Builder
	var list owner.ConversationList
	if status := m.CallAgent("GET", "/conversations?limit=200", nil, &list); status != http.StatusOK {
		t.Fatalf("conversations: %d", status)
	}
	paths := []string{"/inbox?limit=200", "/conversations?limit=200"}
	for _, c := range list.Items {
		paths = append(paths, "/conversations/"+string(c.ID))
	}
	for _, path := range paths {
		var answer json.RawMessage
		if status := m.CallAgent("GET", path, nil, &answer); status != http.StatusOK {
			t.Errorf("GET %s = %d", path, status)
		}
		all.Write(answer)
	}
	return all.String()
}

// hears returns what a hook gets to read.
func hears(c hook.Call) string {
	var all strings.Builder
	all.WriteString(string(c.Payload))
	for _, e := range c.History {
		all.WriteString(string(e.Raw))
	}
	return all.String()
}

// TestGuardIn: what the guard does not allow reaches neither a hook nor the agent, waits for the owner, and looks the same
// to the peer. After the owner's approval, the agent gets what was to be reviewed, and never what was denied.
func TestGuardIn(t *testing.T) {
	for _, hasHook := range []bool{true, false} {
		answers := make(map[string]string)
		for _, decision := range []string{"allow", "review", "deny"} {
			mesh := meshtest.New(t)
			chris := mesh.Stranger("chris")
			var heard []string
			j := new(judge)
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				guarded(j, judgesIn)(cfg)
				if hasHook {
					cfg.Routes = []node.Route{{Pattern: "*", Name: "test", Handler: handler(func(_ context.Context, c hook.Call) (hook.Answer, error) {
						heard = append(heard, hears(c))
						return hook.Answer{}, nil
					})}}
				}
			})
			name := fmt.Sprintf("%s, hook %v", decision, hasHook)
			raw := chris.Sign(in("conv_1", chris.Draft(sarah.ID(), wire.Deliver, text(decision+"-me"))))
			a := meshtest.Post(t, sarah.URL, raw)
			sees := func(when string, want bool) {
				t.Helper()
				if got := strings.Contains(agentSees(t, sarah)+strings.Join(heard, ""), decision+"-me"); got != want {
					t.Errorf("%s, %s: the agent sees it: %v", name, when, got)
				}
			}
			if decision == "allow" {
				must(t, a, http.StatusOK)
				sees("allowed", true)
				continue
			}
			must(t, a, http.StatusAccepted)
			answers[decision] = a.Message(t, sarah).Payload.GetStr("reason")
			sees("judged", false)
			must(t, meshtest.Post(t, sarah.URL, chris.Sign(in("conv_1", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusOK)
			sees("in the history", false)
			ask := theAsk(t, sarah)
			if !strings.Contains(string(ask.Body), "the guard says "+decision+": odd words") {
				t.Errorf("%s: the owner reads %s", name, ask.Body)
			}
			decide(t, sarah, ask, acl.Approve)
			waitFor(t, "the end of the run", func() bool { return len(runningItems(t, sarah)) == 0 })
			sees("approved", decision == "review")
			items, _, err := sarah.Inbox(t.Context(), "", "", 10)
			at := slices.IndexFunc(items, func(i node.Item) bool { return strings.Contains(string(i.Payload), decision+"-me") })
			if err != nil || len(items) != 2 || at < 0 || items[at].Verdict == nil || items[at].Verdict.Decision != decision {
				t.Errorf("%s: the owner's inbox has %+v, %v", name, items, err)
			}
			if n := j.count(); n != 2 {
				t.Errorf("%s: the guard was asked %d times about two messages", name, n)
			}
		}
		if answers["review"] != answers["deny"] || answers["deny"] == "" {
			t.Errorf("the peer learns the verdict: %q", answers)
		}
	}
}

func runningItems(t *testing.T, m *meshtest.Member) []node.Item {
	t.Helper()
	items, _, err := m.Inbox(t.Context(), owner.ItemRunning, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

// TestGuardComesAfterTheRules: the guard is not asked about what waits for the owner, but after the release. It never lets
// through what a rule holds.
func TestGuardComesAfterTheRules(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	j := new(judge)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		guarded(j, judgesIn)(cfg)
		cfg.Policy.Mode = acl.Approval
	})
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, text("deny-me")))), http.StatusAccepted)
	if n := j.count(); n != 0 {
		t.Errorf("the guard was asked %d times about a held message", n)
	}
	first := theAsk(t, sarah)
	decide(t, sarah, first, acl.Approve)
	waitFor(t, "the guard's question", func() bool {
		asks := pendingAsks(t, sarah)
		return len(asks) == 1 && asks[0].ID != first.ID
	})
	if seen := agentSees(t, sarah); strings.Contains(seen, "deny-me") || j.count() != 1 {
		t.Errorf("after the release the agent sees %s", seen)
	}
}

// TestGuardFails: a text without a verdict waits for the owner, who may have the guard asked again. The agent learns
// nothing of it.
func TestGuardFails(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	j := new(judge)
	sarah := mesh.Node("sarah", guarded(j, judgesIn))
	a := meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, text("crash-me"))))
	must(t, a, http.StatusAccepted)
	item := theItem(t, sarah)
	if item.State != owner.ItemFailed || item.Verdict != nil || !strings.Contains(item.Note, "no verdict") {
		t.Errorf("item = %+v", item)
	}
	if seen := agentSees(t, sarah); strings.Contains(seen, "crash-me") || strings.Contains(seen, "luck") {
		t.Errorf("the agent sees %s", seen)
	}
	j.mu.Lock()
	j.mended = true
	j.mu.Unlock()
	if status := sarah.Call("POST", "/inbox/"+item.ID+"/retry", nil, nil); status != http.StatusOK {
		t.Fatalf("ask again: %d", status)
	}
	waitFor(t, "the message in the inbox", func() bool { return theItem(t, sarah).State == owner.ItemNew })
	if !strings.Contains(agentSees(t, sarah), "crash-me") || j.count() != 2 {
		t.Error("the agent does not see a message that the guard allowed")
	}
}

// TestVerdictIsOfOnePeer: the guard is asked about the same text of another peer.
func TestVerdictIsOfOnePeer(t *testing.T) {
	mesh := meshtest.New(t)
	j := new(judge)
	sarah := mesh.Node("sarah", guarded(j, judgesIn))
	for _, name := range []string{"chris", "anna"} {
		peer := mesh.Stranger(name)
		raw := peer.Sign(in("conv_1", peer.Draft(sarah.ID(), wire.Deliver, text("hello"))))
		must(t, meshtest.Post(t, sarah.URL, raw), http.StatusOK)
		must(t, meshtest.Post(t, sarah.URL, raw), http.StatusOK) // a repeat is not judged again
	}
	if j.count() != 2 || strings.Fields(j.asked[0])[0] == strings.Fields(j.asked[1])[0] {
		t.Errorf("the guard was asked %q", j.asked)
	}
}

// TestReplyIsJudged: an answer on the connection of our agent's message is judged before the agent reads it, in the answer
// to its command, too.
func TestReplyIsJudged(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return says(t, text("deny-me now")), nil
	}, unlimited))
	j := new(judge)
	sarah := mesh.Node("sarah", guarded(j, judgesIn))
	var answer json.RawMessage
	body := map[string]any{"to": chris.ID(), "intent": "mesh.message", "payload": json.RawMessage(hello), "wait_seconds": 10}
	if status := sarah.CallAgent("POST", "/send", body, &answer); status != http.StatusOK || strings.Contains(string(answer), "deny-me") {
		t.Errorf("the agent's send: %d %s", status, answer)
	}
	waitFor(t, "the verdict", func() bool {
		items, _, _ := sarah.Inbox(t.Context(), "", "", 10)
		return len(items) == 1 && items[0].Verdict != nil && items[0].State == owner.ItemNew
	})
	if seen := agentSees(t, sarah); strings.Contains(seen, "deny-me") || strings.Contains(seen, "odd words") {
		t.Errorf("the agent sees %s", seen)
	}
	if status := sarah.Call("POST", "/send", body, &answer); status != http.StatusOK || !strings.Contains(string(answer), "deny-me") {
		t.Errorf("the owner's send: %d %s", status, answer)
	}
}

// TestGuardOut: what a hook or the agent wrote waits for the owner unless the guard allows it; so do the owner's words if
// the guard judges those.
func TestGuardOut(t *testing.T) {
	for word, waits := range map[string]bool{"allow": false, "review": true, "deny": true, "crash": true} {
		mesh := meshtest.New(t)
		chris := mesh.Node("chris", open)
		j := new(judge)
		sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			return says(t, text(word+"-me")), nil
		}, guarded(j, judgesOut)))
		stranger := mesh.Stranger("anna")
		want := http.StatusOK
		if waits {
			want = http.StatusAccepted
		}
		a := meshtest.Post(t, sarah.URL, stranger.Sign(stranger.Draft(sarah.ID(), wire.Deliver, hello)))
		if must(t, a, want); strings.Contains(string(a.Body), word+"-me") == waits {
			t.Errorf("%s: the answer of the hook is %s", word, a.Body)
		}
		body := map[string]any{"to": chris.ID(), "intent": "mesh.message", "payload": json.RawMessage(text(word + "-me")), "wait_seconds": 10}
		var sent owner.Sent
		if sarah.CallAgent("POST", "/send", body, &sent); (sent.State == owner.SendHeld) != waits {
			t.Errorf("%s: the agent's message is %s", word, sent.State)
		}
		if sarah.Call("POST", "/send", body, &sent); sent.State == owner.SendHeld {
			t.Errorf("%s: the owner's message is %s", word, sent.State)
		}
		sarah = mesh.Restart(sarah, guarded(j, func(g *guard.Guard) { g.Out, g.Owner = true, true }))
		if sarah.Call("POST", "/send", body, &sent); (sent.State == owner.SendHeld) != waits {
			t.Errorf("%s: the owner's message, which is judged, is %s", word, sent.State)
		}
	}
}

// TestInjectionsReachNobody: of the texts of node/guard, what the guard denies reaches no hook and no agent, and nothing is
// lost.
func TestInjectionsReachNobody(t *testing.T) {
	data, err := os.ReadFile("guard/testdata/injections.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	var mu sync.Mutex
	var heard strings.Builder
	j := new(judge)
	sarah := mesh.Node("sarah", configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
		mu.Lock()
		defer mu.Unlock()
		heard.WriteString(hears(c))
		return hook.Answer{}, nil
	}, guarded(j, judgesIn)))
	n := 0
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); n++ {
		var injection struct{ Text string }
		if err := json.Unmarshal(lines.Bytes(), &injection); err != nil {
			t.Fatal(err)
		}
		word := []string{"deny-me", "review-me", "allow-me"}[n%3]
		want := http.StatusAccepted
		if word == "allow-me" {
			want = http.StatusOK
		}
		draft := in(wire.ConversationID(fmt.Sprintf("conv_%d", n/6)), chris.Draft(sarah.ID(), wire.Deliver, text(fmt.Sprintf("%s-%d %s", word, n, injection.Text))))
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(draft)), want)
	}
	seen := agentSees(t, sarah) + heard.String()
	for i := range n {
		if strings.Contains(seen, fmt.Sprintf("deny-me-%d ", i)) || strings.Contains(seen, fmt.Sprintf("review-me-%d ", i)) {
			t.Errorf("text %d reaches the agent", i)
		}
		if i%3 == 2 && !strings.Contains(heard.String(), fmt.Sprintf("allow-me-%d ", i)) {
			t.Errorf("text %d does not reach the hook", i)
		}
	}
	items, _, err := sarah.Inbox(t.Context(), "", "", 500)
	if err != nil || len(items) != n || j.count() != n {
		t.Errorf("%d texts, %d items, %d questions: %v", n, len(items), j.count(), err)
	}
}

// TestProgressWaitsForTheVerdict: with a guard for what leaves, a peer learns at once that the agent works, and nothing
// that the agent wrote.
func TestProgressWaitsForTheVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := "half of a secret"
		hooked := configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			c.Progress(hook.Result{Task: &hook.Task{State: hook.TaskWorking, Text: secret}, Artifacts: []hook.Artifact{{Parts: []hook.Part{{Text: &secret}}}}})
			c.Progress(hook.Result{Artifacts: []hook.Artifact{{Parts: []hook.Part{{Text: &secret}}}}})
			return says(t, `{"action":"confirmed"}`), nil
		}, guarded(new(judge), judgesOut), mode(acl.Open))
		sarah := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, hooked)
		defer sarah.stop()
		mesh, err := sarah.Attach(bridge.Kind{Name: "test"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var seen []bridge.Progress
		go mesh.Follow(ctx, func(e bridge.Event) {
			if e.Progress != nil {
				seen = append(seen, *e.Progress)
			}
		})
		synctest.Wait()
		out := to("ann", "conv_1", "hello")
		if _, err := sarah.Accept(t.Context(), inbound(out, "wire:test", out.Address)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(seen) != 1 || seen[0].Result.Task.State != hook.TaskWorking || seen[0].Result.Task.Text != "" || seen[0].Result.Artifacts != nil {
			t.Errorf("reports = %+v", seen)
		}
	})
}
