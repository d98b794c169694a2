package a2a_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// write sends a text to an address and returns the conversation.
func (h *host) write(to, text string) owner.Sent {
	h.t.Helper()
	sent, err := h.node.OwnerAPI().Send(h.t.Context(), owner.NewMessage{To: to, Intent: wire.Deliver, Payload: deliver(text)}, 2*time.Second)
	if err != nil {
		h.t.Fatalf("send to %s: %v", to, err)
	}
	return sent
}

func deliver(text string) wire.Value {
	return wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", text))))
}

// delivery returns the first attempt to send a message to an address.
func delivery(t *testing.T, to string) bridge.Delivery {
	t.Helper()
	address, err := bridge.ParseAddress(to)
	if err != nil {
		t.Fatal(err)
	}
	m, err := wire.ParseDraft(wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: "am_x", To: address.Pseudonym(), Time: time.Now(), Intent: wire.Deliver, Payload: deliver("x"),
	}.Tree())
	if err != nil {
		t.Fatal(err)
	}
	return bridge.Delivery{ID: "1", To: m.To, Address: address.String(), Message: m, Attempt: 1}
}

// inbox waits for the items of a conversation and returns the payload of the last one.
func (h *host) inbox(conv wire.ConversationID, n int) wire.Value {
	h.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		page, err := h.node.OwnerAPI().ListItems(h.t.Context(), owner.Query{Limit: 100})
		if err != nil {
			h.t.Fatal(err)
		}
		var found []owner.Item
		for _, item := range page.Items {
			if item.Conversation == conv {
				found = append(found, item)
			}
		}
		if len(found) >= n {
			return parse(h.t, string(found[n-1].Payload))
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%d answers in %s, want %d", len(found), conv, n)
		}
	}
}

// TestTwoNodes checks that two nodes talk over A2A: the card is resolved and its signature verified, the answer comes
// when the other owner has decided, payloads arrive without loss, and a close cancels the task.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	far := serve(t, echo(t), approval, func(c *a2a.Config) { c.Anonymous = true })
	near := serve(t, nil, nil, nil)
	sent := near.write("a2a:"+far.url, "hello")
	if sent.State != owner.SendDelivered {
		t.Fatalf("sent: %+v", sent)
	}
	far.decide(acl.Approve) // only this message, because the caller has no token (AM-97)
	answer := near.inbox(sent.Conversation, 1)
	if text(answer, "message.body") != "you said: hello" || text(answer, "metadata.in_reply_to") != string(sent.MessageID) {
		t.Errorf("the answer is %s", answer.JSON())
	}
	// The next message in the conversation is a task in the same context.
	_, err := near.node.OwnerAPI().Send(t.Context(), owner.NewMessage{To: "a2a:" + far.url, Conversation: sent.Conversation, Intent: wire.Deliver, Payload: deliver("again")}, 0)
	if err != nil {
		t.Fatal(err)
	}
	far.decide(acl.Approve)
	if v := near.inbox(sent.Conversation, 2); text(v, "message.body") != "you said: again" {
		t.Errorf("the second answer is %s", v.JSON())
	}
	if list := far.rpc("", "ListTasks", `{"contextId":"`+string(sent.Conversation)+`"}`); at(list, "result.tasks").Len() != 2 {
		t.Errorf("our conversation is not their context: %s", list.JSON())
	}
}

// TestBindings checks that our client reads tasks and messages of another agent over both bindings.
func TestBindings(t *testing.T) {
	t.Parallel()
	for _, binding := range []string{"JSONRPC", "HTTP+JSON"} {
		p := newPeerAgent(t)
		p.binding = binding
		polls := 0
		p.answer = func(method string, params wire.Value) (string, int) {
			switch method {
			case "SendMessage":
				if text(params, "message.parts.0.text") == "direct" {
					return `{"message":{"messageId":"x","role":"ROLE_AGENT","parts":[{"text":"at once"}]}}`, 0
				}
				return `{"task":{"id":"t1","contextId":"theirs","status":{"state":"TASK_STATE_SUBMITTED"}}}`, 0
			case "GetTask":
				if n, _ := at(params, "historyLength").Num(); n != "0" {
					t.Errorf("%s: asks for %q messages", binding, n)
				}
				if polls++; polls < 2 {
					return `{"id":"t1","contextId":"theirs","status":{"state":"TASK_STATE_WORKING"}}`, 0
				}
				return `{"id":"t1","contextId":"theirs","status":{"state":"TASK_STATE_COMPLETED","message":{"messageId":"s","role":"ROLE_AGENT","parts":[{"text":"all done"}]}},"artifacts":[{"artifactId":"a","name":"N","parts":[{"text":"result"},{"raw":"aGk=","filename":"f"}]}]}`, 0
			}
			return "", -32601
		}
		h := serve(t, nil, nil, nil)
		sent := h.write("a2a:"+p.URL, "direct")
		if v := h.inbox(sent.Conversation, 1); text(v, "message.body") != "at once" {
			t.Errorf("%s: a direct message: %s", binding, v.JSON())
		}
		sent = h.write("a2a:"+p.URL, "work")
		v := h.inbox(sent.Conversation, 1)
		if text(v, "message.body") != "result" || text(v, "task.state") != "completed" || text(v, "task.text") != "all done" || text(v, "artifacts.0.parts.1.raw") != "aGk=" {
			t.Errorf("%s: the result of a task: %s", binding, v.JSON())
		}
	}
}

// TestLostAnswer checks that a message whose call had an unknown outcome is looked for before it is sent again.
func TestLostAnswer(t *testing.T) {
	p := newPeerAgent(t)
	lost, known := true, ""
	p.answer = func(method string, params wire.Value) (string, int) {
		switch method {
		case "SendMessage":
			if lost {
				known, lost = text(params, "message.messageId"), false
				return `not json`, 0 // our side cannot read it
			}
			t.Error("the message was sent twice")
		case "ListTasks":
			return `{"tasks":[{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"text":"done"}]}],"history":[{"messageId":"` + known + `","role":"ROLE_USER","parts":[{"text":"x"}]}]}],"nextPageToken":""}`, 0
		}
		return `{}`, 0
	}
	h := serve(t, nil, nil, nil)
	d := delivery(t, "a2a:"+p.URL)
	_, err := h.bridge.Deliver(t.Context(), d)
	if e, ok := errors.AsType[*client.SendError](err); !ok || !e.Processed {
		t.Fatalf("a call without a readable answer: %v", err)
	}
	d.Attempt = 2
	if _, err := h.bridge.Deliver(t.Context(), d); err != nil {
		t.Errorf("the second attempt: %v", err)
	}
	if _, err := h.bridge.Deliver(t.Context(), d); err != nil || p.count("ListTasks") != 1 {
		t.Errorf("a third attempt: %v, %d lists", err, p.count("ListTasks"))
	}
}

// TestPins checks that the signature of a card is verified, and its key and interface are pinned.
func TestPins(t *testing.T) {
	far, other := serve(t, echo(t), nil, nil), serveAs(t, "other", echo(t), nil, nil)
	_, _, card := far.request("", "GET", far.url+"/.well-known/agent-card.json", "")
	_, _, otherCard := other.request("", "GET", other.url+"/.well-known/agent-card.json", "")
	_, _, oldCard := far.request("", "GET", far.url+"/.well-known/agent.json", "")
	p := newPeerAgent(t)
	plain := p.card
	p.setCard(func(string) string { return card })
	h := serve(t, nil, nil, func(c *a2a.Config) {
		c.Links = []bridge.Link{{Name: "far", Kind: "a2a", URL: p.URL}}
	})
	h.awaitLinkTest(t)
	for _, step := range []struct {
		name, card string
		refused    bool
	}{
		{"a signed card", card, false},
		{"the same card", card, false},
		{"a changed card with the old signature", strings.Replace(card, `"description":"`, `"description":"x`, 1), true},
		{"a card signed by another key", otherCard, true},
		{"a card without a signature", plain(p.URL), true},
		{"a card of A2A 0.3, without a signature", oldCard, true},
		{"the signed card again", card, false},
	} {
		p.setCard(func(string) string { return step.card })
		if err := h.bridge.Test(t.Context(), "far"); (err != nil) != step.refused {
			t.Errorf("%s: %v, want it refused: %v", step.name, err, step.refused)
		}
	}
	p.setCard(plain)
	unpin(t, h, "a2a:far/agent")
	if err := h.bridge.Test(t.Context(), "far"); err != nil {
		t.Errorf("an unsigned card after unpin: %v", err)
	}
	p.setCard(func(url string) string { return strings.Replace(plain(url), `"d"`, `"another description"`, 1) })
	if err := h.bridge.Test(t.Context(), "far"); err != nil {
		t.Errorf("an unsigned card with another description: %v", err)
	}
	p.setCard(func(url string) string { return strings.Replace(plain(url), "/rpc", "/other", 1) })
	if err := h.bridge.Test(t.Context(), "far"); err == nil {
		t.Error("an unsigned card with another interface was taken")
	}
	p.setCard(func(string) string { return otherCard })
	if err := h.bridge.Test(t.Context(), "far"); err == nil {
		t.Error("a signature made another interface acceptable")
	}
	for _, bad := range []string{`[]`, `{`, `{"supportedInterfaces":[]}`, strings.Repeat("x", 300<<10)} {
		p.setCard(func(string) string { return bad })
		if err := h.bridge.Test(t.Context(), "far"); err == nil {
			t.Errorf("the card %.40q was taken", bad)
		}
	}
}

// awaitLinkTest waits for the end of the test of the link with which the bridge begins.
func (h *host) awaitLinkTest(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); h.bridge.Links()[0].Since.IsZero(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the bridge does not test its link")
		}
	}
}

func unpin(t *testing.T, h *host, address string) {
	t.Helper()
	if status, body := h.own("DELETE", "/a2a/pins/"+url.PathEscape(address)); status != 200 {
		t.Fatalf("unpin: %d %s", status, body)
	}
}

// TestLinkToken checks that a link's token goes to the host of the link only, and that a refused token takes the link
// down. A refused message does not.
func TestLinkToken(t *testing.T) {
	t.Parallel()
	p, thief := newPeerAgent(t), newPeerAgent(t)
	p.token = "s3cret"
	configured := "s3cret"
	h := serve(t, nil, nil, func(c *a2a.Config) {
		c.Links = []bridge.Link{{Name: "claw", Kind: "a2a", URL: p.URL}}
		c.Tokens = map[string]client.Credential{"claw": client.Credential(configured)}
	})
	if sent := h.write("a2a:claw/agent", "hello"); sent.State != owner.SendDelivered {
		t.Errorf("with the token: %+v", sent)
	}
	since := h.bridge.Links()[0].Since
	answer := p.answer
	p.setAnswer(func(string, wire.Value) (string, int) { return "", -32602 })
	if sent := h.write("a2a:claw/agent", "not this"); sent.State != owner.SendFailed {
		t.Errorf("a refused message: %+v", sent)
	}
	if l := h.bridge.Links()[0]; l.State != bridge.LinkUp || l.Since != since || since.IsZero() {
		t.Errorf("after a refused message the link is %+v, want it up since %s", l, since)
	}
	p.setAnswer(answer)
	own := p.card
	p.setCard(func(string) string { return own(thief.URL) })
	unpin(t, h, "a2a:claw/agent")
	if err := h.bridge.Test(t.Context(), "claw"); err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("a card that names another host: %v", err)
	}
	if thief.count("SendMessage") > 0 {
		t.Error("the token went to another host")
	}
	p.setCard(own)
	configured = "wrong"
	h.restart(nil, nil)
	unpin(t, h, "a2a:claw/agent")
	if sent := h.write("a2a:claw/agent", "hello"); sent.State != owner.SendFailed || sent.Status != 401 {
		t.Errorf("with a wrong token: %+v", sent)
	}
	if links := h.bridge.Links(); links[0].State != bridge.LinkDown || links[0].Error == "" {
		t.Errorf("the link is %+v, want it down", links[0])
	}
}

// TestRepliesArePushed: an agent behind a link with replies: push, which never asks for its task, gets the
// answer as a message of its own.
func TestRepliesArePushed(t *testing.T) {
	for _, push := range []bool{true, false} {
		p := newPeerAgent(t)
		h := serve(t, echo(t), nil, func(c *a2a.Config) {
			l := bridge.Link{Name: "claw", Kind: "a2a", URL: p.URL, Policy: bridge.LinkPolicy{Access: "open"}}
			if push {
				l.Options = map[string]string{"replies": "push"}
			}
			c.Links = []bridge.Link{l}
		})
		// The body and the headers of OpenClaw's own client: no A2A-Version.
		_, _, body := h.request("claw", "POST", h.base, `{"jsonrpc":"2.0","id":"u1","method":"SendMessage","params":{"message":{"messageId":"u2","role":"ROLE_USER","contextId":"ctx-oc-mesh","parts":[{"text":"hi"}]},"configuration":{"returnImmediately":true}}}`)
		id := text(parse(t, body), "result.task.id")
		h.await("claw", id, "TASK_STATE_COMPLETED")
		if !push {
			if p.count("SendMessage") > 0 {
				t.Error("an answer was pushed to an agent that did not ask for it")
			}
			continue
		}
		select {
		case v := <-p.got:
			if text(v, "message.parts.0.text") != "you said: hi" {
				t.Errorf("the pushed answer is %s", v.JSON())
			}
		case <-time.After(10 * time.Second):
			t.Error("the answer was not pushed")
		}
	}
}

// TestGuard checks that a URL that the owner types does not lead into the owner's network in the public profile.
func TestGuard(t *testing.T) {
	p := newPeerAgent(t)
	public := client.NewHTTP(client.HTTPConfig{})
	defer public.Close()
	h := serve(t, nil, nil, func(c *a2a.Config) { c.Local, c.HTTP = false, public })
	for _, bad := range []string{p.URL, "https://10.0.0.1", "https://localhost:" + p.URL[strings.LastIndexByte(p.URL, ':')+1:]} {
		if sent := h.write("a2a:"+bad, "hello"); sent.State != owner.SendFailed {
			t.Errorf("%s: %+v", bad, sent)
		}
	}
	if p.count("SendMessage") > 0 {
		t.Error("a call reached the owner's network")
	}
}

// TestUnreachable checks that the error of a failed call names its cause.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	p := newPeerAgent(t)
	h := serve(t, nil, nil, func(c *a2a.Config) { c.Links = []bridge.Link{{Name: "far", Kind: "a2a", URL: p.URL}} })
	h.write("a2a:far/agent", "so that the card is known")
	p.Close()
	_, deliverErr := h.bridge.Deliver(t.Context(), delivery(t, "a2a:far/agent"))
	for what, err := range map[string]error{"fetch a card": h.bridge.Test(t.Context(), "far"), "send a message": deliverErr} {
		if err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(p.URL, "http://")) { // refused, or the open connection ended
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestConfig checks which links are refused.
func TestConfig(t *testing.T) {
	for name, l := range map[string]bridge.Link{
		"a reserved name": {Name: "inbound", Kind: "a2a", URL: "https://x.example"},
		"web":             {Name: "web", Kind: "a2a", URL: "https://x.example"},
		"no URL":          {Name: "x", Kind: "a2a", Dir: "/tmp"},
		"an option":       {Name: "x", Kind: "a2a", URL: "https://x.example", Options: map[string]string{"color": "red"}},
	} {
		h := serve(t, nil, nil, nil)
		if _, err := a2a.New(a2a.Config{Store: h.node.Store, Links: []bridge.Link{l}}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// TestLostTask checks that a task which the other agent forgets ends with a failure that our side can read.
func TestLostTask(t *testing.T) {
	p := newPeerAgent(t)
	working := p.answer
	p.answer = func(method string, params wire.Value) (string, int) {
		if method == "GetTask" {
			return "", -32001
		}
		return working(method, params)
	}
	h := serve(t, nil, nil, nil)
	sent := h.write("a2a:"+p.URL, "work")
	if v := h.inbox(sent.Conversation, 1); text(v, "task.state") != "failed" {
		t.Errorf("a forgotten task: %s", v.JSON())
	}
}

// TestAnswerSurvivesFailures checks that a failure of the agent while its answer is awaited does not end the task: the
// answer comes when the agent, or the owner, has mended the cause.
func TestAnswerSurvivesFailures(t *testing.T) {
	for _, status := range []int{http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout} {
		for _, binding := range []string{"JSONRPC", "HTTP+JSON"} {
			t.Run(fmt.Sprint(binding, status), func(t *testing.T) {
				t.Parallel()
				p := newPeerAgent(t)
				p.binding = binding
				working, polls := p.answer, 0
				p.answer = func(method string, params wire.Value) (string, int) {
					if method != "GetTask" {
						return working(method, params)
					}
					if polls++; polls == 1 {
						return "", status
					}
					return completed, 0
				}
				h := serve(t, nil, nil, nil)
				if v := h.inbox(h.write("a2a:"+p.URL, "work").Conversation, 1); text(v, "message.body") != "done" {
					t.Errorf("the answer is %s", v.JSON())
				}
			})
		}
	}
}

const completed = `{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"text":"done"}]}]}`

// TestAnswerWithLargeNumber checks that an answer with a number that no message can hold becomes a text with that number.
func TestAnswerWithLargeNumber(t *testing.T) {
	t.Parallel()
	p := newPeerAgent(t)
	p.answer = func(string, wire.Value) (string, int) {
		return `{"task":` + strings.Replace(completed, `{"text":"done"}`, `{"data":{"id":9007199254740993}}`, 1) + `}`, 0
	}
	h := serve(t, nil, nil, nil)
	if v := h.inbox(h.write("a2a:"+p.URL, "work").Conversation, 1); !strings.Contains(text(v, "message.body"), "9007199254740993") {
		t.Errorf("the answer is %s", v.JSON())
	}
}

// TestAnswerSurvivesNewCard checks that the answer of an agent whose card has changed comes after the owner has
// unpinned the agent.
func TestAnswerSurvivesNewCard(t *testing.T) {
	t.Parallel()
	p := newPeerAgent(t)
	var changed atomic.Bool
	working, plain := p.answer, p.card
	p.answer = func(method string, params wire.Value) (string, int) {
		if method == "GetTask" && changed.Load() {
			return completed, 0
		}
		return working(method, params)
	}
	p.setCard(func(url string) string {
		if changed.Load() {
			return strings.Replace(plain(url), "/rpc", "/rpc2", 1)
		}
		return plain(url)
	})
	h := serve(t, nil, nil, nil)
	conv := h.write("a2a:"+p.URL, "work").Conversation
	h.bridge.AwaitSent(t)
	changed.Store(true)
	h.bridge.ExpireCards(t)
	h.bridge.AgeSent(t, 0)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, tries := h.bridge.SentDue(t); tries >= 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the task is not polled while the card is not trusted")
		}
	}
	unpin(t, h, "a2a:"+p.URL)
	h.bridge.AgeSent(t, 0)
	if v := h.inbox(conv, 1); text(v, "message.body") != "done" {
		t.Errorf("after unpin: %s", v.JSON())
	}
}

// own calls the owner API of the bridge.
func (h *host) own(method, path string) (int, string) {
	rec := httptest.NewRecorder()
	h.owner.ServeHTTP(rec, httptest.NewRequest(method, "/owner"+path, nil))
	return rec.Code, rec.Body.String()
}
