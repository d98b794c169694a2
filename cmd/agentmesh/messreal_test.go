package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// messClient is a client of the exchange in a real process, with its own key.
type messClient struct {
	t    *testing.T
	base string
	key  string
}

// do makes a call and returns its answer. may lists the statuses of refusals that do not fail the test.
func (c messClient) do(ctx context.Context, method, path, kind, body string, may ...int) wire.Value {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/api/v1/exchanges/home/"+path, strings.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return wire.Value{}
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			c.t.Error(err)
		}
		return wire.Value{}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if ctx.Err() != nil {
		return wire.Value{}
	}
	if err != nil || resp.StatusCode >= 300 && !slices.Contains(may, resp.StatusCode) {
		c.t.Errorf("%s %s: %d %s, %v", method, path, resp.StatusCode, data, err)
	}
	v, _ := wire.Parse(data)
	return v
}

// post posts a raw block in YAML.
func (c messClient) post(block string) wire.Value {
	c.t.Helper()
	return c.do(c.t.Context(), http.MethodPost, "messages", "application/yaml", block)
}

func (c messClient) thread(ref string) wire.Value {
	c.t.Helper()
	t, _ := c.do(c.t.Context(), http.MethodGet, "requests/"+ref, "", "").Get("thread")
	return t
}

// startHousehold starts a process and registers clients with the given capabilities.
func startHousehold(t *testing.T, who map[string]string) map[string]messClient {
	t.Helper()
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	s, err := startServe(filepath.Join(t.TempDir(), "data"), []string{"--set=mess.serve=on", "--set=mess.calls_per_minute=0"}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Process.Signal(os.Interrupt); s.Wait() })
	out := map[string]messClient{}
	for id, capabilities := range who {
		c := messClient{t: t, base: s.info.URL}
		list := `[]`
		if capabilities != "" {
			list = `["` + strings.ReplaceAll(capabilities, " ", `","`) + `"]`
		}
		c.key = c.do(t.Context(), http.MethodPost, "register", "application/json", `{"executor_id":"`+id+`","capabilities":`+list+`}`).GetStr("api_key")
		out[id] = c
	}
	return out
}

// work acts as an executor until ctx ends: it claims and completes every request that it is offered.
func (c messClient) work(ctx context.Context, did func(intent string)) {
	for ctx.Err() == nil {
		list, _ := c.do(ctx, http.MethodGet, "requests?status=pending", "", "").Get("threads")
		for th := range list.Elems() {
			ref := th.GetStr("ref")
			c.do(ctx, http.MethodPatch, "requests/"+ref, "application/json", `{"status":"claimed","message":"on my way"}`)
			c.do(ctx, http.MethodPatch, "requests/"+ref, "application/json", `{"status":"in_progress"}`)
			did(th.GetStr("intent"))
			c.do(ctx, http.MethodPatch, "requests/"+ref, "application/json",
				`{"status":"completed","mess":[{"response":{"re":"`+ref+`","content":[{"confirmation":{"confirmed":true,"units":3}}]}}]}`)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestOnionsForReal runs the batch of the specification over HTTP in a real process: three executors with different
// capabilities look for work independently, and the onions are bought, delivered and diced in this order.
func TestOnionsForReal(t *testing.T) {
	who := startHousehold(t, map[string]string{
		"agent": "", "instacart-proxy": "buy", "courier": "deliver", "kitchen-robot": "precision-knife-work home-kitchen-access",
	})
	var mu sync.Mutex
	var order []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var work sync.WaitGroup
	for _, id := range []string{"kitchen-robot", "courier", "instacart-proxy"} {
		work.Go(func() {
			who[id].work(ctx, func(intent string) {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, id+": "+intent)
			})
		})
	}
	ack := who["agent"].post(`MESS:
- request:
    id: dice-onions
    intent: dice the onions, medium dice
    requires: [precision-knife-work, home-kitchen-access]
    constraints: {depends_on: [deliver-onions]}
- request: {id: get-onions, intent: buy yellow onions, requires: [buy], constraints: {location: grocery store near home}}
- request: {id: deliver-onions, intent: deliver onions to home, requires: [deliver], constraints: {depends_on: [get-onions]}}
`)
	block, err := thread.FromTree(ack)
	if err != nil {
		t.Fatal(err)
	}
	requests, _ := block[0].Body.Get("requests")
	dice := requests.At(0).GetStr("ref")
	for deadline := time.Now().Add(2 * time.Minute); who["agent"].thread(dice).GetStr("status") != "completed"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the onions are %s after %v", who["agent"].thread(dice).GetStr("status"), order)
		}
	}
	cancel()
	work.Wait()
	want := "instacart-proxy: buy yellow onions, courier: deliver onions to home, kitchen-robot: dice the onions, medium dice"
	if got := strings.Join(order, ", "); got != want {
		t.Errorf("the executors did %s; want %s", got, want)
	}
}

// TestAppendixForReal sends the conversation of the specification's appendix to a real process, as raw blocks in YAML.
func TestAppendixForReal(t *testing.T) {
	who := startHousehold(t, map[string]string{"agent": "", "teague-phone": "take-photo check-visual", "kitchen-helper": "operate-appliance home-kitchen-access"})
	agent, phone, helper := who["agent"], who["teague-phone"], who["kitchen-helper"]
	refOf := func(v wire.Value) string {
		t.Helper()
		block, err := thread.FromTree(v)
		if err != nil {
			t.Fatal(err)
		}
		return block[0].Body.GetStr("ref")
	}
	dinner := refOf(agent.post(`MESS:
- v: 1.0.0
- request:
    id: dinner-check
    intent: check what ingredients we have
    context: [Planning dinner for 4, Kids prefer pasta or rice dishes]
    response_hint: [text, image]
`))
	phone.post("MESS:\n- status: {re: dinner-check, code: claimed, executor: household:teague-phone}\n")
	phone.post(`MESS:
- response:
    re: dinner-check
    content:
    - image: data:image/jpeg;base64,/9j/4AAQSkZJRg==
    - |
      Fridge: chicken thighs (1lb, exp tomorrow), broccoli, carrots
      Pantry: rice, pasta, soy sauce, honey
    notes: chicken should be used tonight
`)
	rice := refOf(agent.post(`MESS:
- request:
    id: start-rice
    intent: start rice cooker with 2 cups rice
    precision: exact
    context: [{ref: dinner-check}, Making stir fry with the chicken]
    requires: [operate-appliance, home-kitchen-access]
`))
	phone.do(t.Context(), http.MethodGet, "requests/"+rice, "", "", http.StatusNotFound) // executors without the capabilities do not see the thread
	helper.post(`MESS:
- status:
    re: start-rice
    code: needs_confirmation
    executor: household:kitchen-helper
    action: start rice cooker (2 cups white rice, 2.5 cups water)
    consequences: rice will be ready in ~25 minutes
`)
	agent.post("MESS:\n- reply: {re: start-rice, confirm: true}\n")
	helper.post("MESS:\n- response: {re: start-rice, content: [{confirmation: true}, \"Rice cooker started, will be ready at 5:30pm\"]}\n")
	for ref, want := range map[string]string{dinner: "chicken thighs", rice: "ready at 5:30pm"} {
		th := agent.thread(ref)
		if th.GetStr("status") != "completed" || !strings.Contains(string(th.JSON()), want) {
			t.Errorf("%s: %s", ref, th.JSON())
		}
	}
}
