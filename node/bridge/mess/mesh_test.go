package mess

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestThroughTheMesh: a MESS client of one exchange is served by an executor of another node's exchange, which the
// directory found. Neither knows of AgentMesh: claim, question, answer, result (MESS-44, MESS section 12).
func TestThroughTheMesh(t *testing.T) {
	mesh := meshtest.New(t)
	away := newMeshNode(t, mesh, "away", nil)
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Mesh = directoryMesh{c.Mesh, func(q client.Query) ([]wire.Card, error) {
			if len(q.Capabilities) != 1 || q.Capabilities[0] != "vacuum-floor" || len(q.Intents) != 1 || q.Intents[0] != Intent {
				t.Errorf("the directory is asked for %+v", q)
			}
			return []wire.Card{{ID: away.node.ID()}}, nil
		}}
	})
	away.executor("roomba", "vacuum-floor")
	ref := home.request("client", "{id: vacuum-kitchen, intent: vacuum the kitchen, requires: [vacuum-floor]}")
	home.decide(askRoute, acl.Approve)
	there := away.waitMeshThread()
	if th := away.thread(there); th.Requester != string(home.node.ID()) || th.Intent != "vacuum the kitchen" {
		t.Fatalf("it arrived as %+v", th)
	}
	away.status("roomba", there, "claimed, eta: 5m")
	if th := home.waitStatus(ref, thread.Claimed); th.Holder != string(away.node.ID()) {
		t.Errorf("holder = %q", th.Holder)
	}
	away.status("roomba", there, "needs_input, questions: [{field: where, question: Which area?, options: [sink, stove]}]")
	home.waitStatus(ref, thread.NeedsInput)
	home.do("client", "- reply: {re: vacuum-kitchen, answers: {where: sink}}")
	away.waitStatus(there, thread.InProgress)
	away.do("roomba", "- response: {re: "+there+", content: [{confirmation: true}, clean]}")
	home.waitStatus(ref, thread.Completed)
	messages, err := home.Messages(t.Context(), ref)
	if err != nil || !strings.Contains(string(messages[len(messages)-1].Mess.JSON()), "clean") {
		t.Errorf("messages = %+v, %v", messages, err)
	}
	for name, p := range map[string]*meshNode{"home": home, "away": away} {
		if items, _, err := p.node.Inbox(t.Context(), owner.ItemNew, "", 10); err != nil || len(items) != 0 {
			t.Errorf("%s: the inbox has %+v, %v, and nobody there is to do anything", name, items, err)
		}
		convs, err := p.node.Store.Steps().Conversations(t.Context(), "", 0, 10, time.Now())
		if err != nil || len(convs.Conversations) != 1 || convs.Conversations[0].Open {
			t.Errorf("%s has %d conversations, open %v, %v; want one that is closed", name, len(convs.Conversations), convs.Conversations, err)
			continue
		}
		if conv, err := conversations.Decode(convs.Conversations[0]); err != nil || conv.Idle != 90*24*time.Hour {
			t.Errorf("%s: the conversation may be silent for %v, %v", name, conv.Idle, err)
		}
	}
}

// TestOwnerIsAskedFirst: a request that its requester wants to confirm, or pays for, waits for our owner whatever the
// policy; the owner's approval releases it.
func TestOwnerIsAskedFirst(t *testing.T) {
	mesh := meshtest.New(t)
	away := newMeshNode(t, mesh, "away", nil)
	away.executor("bob")
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Mesh = directoryMesh{c.Mesh, func(client.Query) ([]wire.Card, error) {
			return []wire.Card{{ID: away.node.ID(), Name: "Away"}}, nil
		}}
	})
	ref := home.request(thread.OwnerID, "{intent: move the piano, compensation: {shells: 5}}")
	home.decide(askRoute, acl.Approve)
	there := away.waitMeshThread()
	away.waitStatus(there, thread.Held)
	away.refuse(404, "bob", "- status: {re: "+there+", code: claimed}")
	home.waitStatus(ref, thread.Held)
	away.decide(askHeld, acl.Approve)
	away.waitStatus(there, thread.Received)
	away.status("bob", there, "needs_confirmation, action: through the window")
	home.waitStatus(ref, thread.NeedsConfirmation)
	home.decide(askConfirm, acl.Approve)
	away.waitStatus(there, thread.InProgress)
	away.status("bob", there, "failed, reason: too heavy")
	if th := home.waitStatus(ref, thread.Failed); th.Holder != string(away.node.ID()) {
		t.Errorf("holder = %q", th.Holder)
	}
}

// TestRESTLink: a link over REST: our request goes to a foreign exchange, and its progress and result come back.
func TestRESTLink(t *testing.T) {
	foreign := newHTTPLab(t, nil)
	us, bob := foreign.register("us"), foreign.register("bob")
	mesh := meshtest.New(t)
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Links = []bridge.Link{{Name: "garden", Kind: Kind, URL: foreign.srv.URL}}
		c.Tokens = map[string]client.Credential{"garden": client.Credential(us)}
	})
	ref := home.request(thread.OwnerID, "{id: water, intent: water the roses}")
	address := bridge.Address{Kind: Kind, Link: "garden", Peer: thread.ExchangeID}
	if err := home.bridge.offerTo(t.Context(), ref, string(address.Pseudonym()), address.String(), nil); err != nil {
		t.Fatal(err)
	}
	var there string
	eventually(t, "the request over there", func() bool {
		list, _ := foreign.want(200, bob, "GET", "requests", "").Get("threads")
		if list.Len() == 1 {
			there = list.At(0).GetStr("ref")
		}
		return there != ""
	})
	foreign.want(200, bob, "PATCH", "requests/"+there, `{"status":"claimed"}`)
	home.bridge.links.All()[0].wakePoll()
	home.waitStatus(ref, thread.Claimed)
	foreign.want(200, bob, "PATCH", "requests/"+there, `{"status":"needs_input","message":"how much?"}`)
	home.bridge.links.All()[0].wakePoll()
	home.waitStatus(ref, thread.NeedsInput)
	remote := home.bridge.links.All()[0].remote.(*restRemote)
	// as with a data directory without our name: our own messages come back and are not somebody else's
	if err := remote.updateState(t.Context(), func(s *restState) { *s = restState{} }); err != nil {
		t.Fatal(err)
	}
	home.do(thread.OwnerID, "- reply: {re: water, answers: {amount: a lot}}")
	eventually(t, "the answer over there", func() bool { return foreign.thread(there).Status == thread.InProgress })
	foreign.want(200, bob, "PATCH", "requests/"+there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["wet"]}}]}`)
	home.bridge.links.All()[0].wakePoll()
	home.waitStatus(ref, thread.Completed)
	if convs, err := home.node.Store.Steps().Conversations(t.Context(), "", 0, 10, time.Now()); err != nil || len(convs.Conversations) != 1 {
		t.Errorf("%d conversations, %v", len(convs.Conversations), err)
	}
	if n := strings.Count(home.allText(ref), "a lot"); n != 1 {
		t.Errorf("the answer is in the thread %d times", n)
	}
	if err := home.bridge.Test(t.Context(), "garden"); err != nil {
		t.Errorf("Test: %v", err)
	}
	if links := home.bridge.Links(); len(links) != 1 || links[0].State != bridge.LinkUp || links[0].Peers == 0 {
		t.Errorf("links = %+v", links)
	}
	foreign.srv.Close()
	if err := home.bridge.Test(t.Context(), "garden"); err == nil {
		t.Error("a closed exchange passes the test")
	}
}

// TestDirectoryLink: a link over a directory: a request that others put there reaches our owner's exchange, and the
// work here is written there.
func TestDirectoryLink(t *testing.T) {
	dir := t.TempDir()
	mesh := meshtest.New(t)
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Links = []bridge.Link{{Name: "shed", Kind: Kind, Dir: dir, Options: map[string]string{"as": "us"}}}
	})
	home.executor("bob")
	others := &dirRemote{dir: dir, name: "neighbour"}
	there, err := others.create(t.Context(), "", mustParse(t, "- request: {id: saw, intent: lend me a saw}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	home.bridge.links.All()[0].wakePoll()
	ref := home.waitMeshThread()
	if th := home.thread(ref); th.Intent != "lend me a saw" || !strings.HasPrefix(th.Requester, "am_") {
		t.Fatalf("it came in as %+v", th)
	}
	home.status("bob", ref, "claimed")
	state := func() thread.Code {
		root, err := folder.OpenLayout(others.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		f, err := others.load(root, there)
		if err != nil {
			return ""
		}
		return f.Thread.Status
	}
	eventually(t, "the claim in the directory", func() bool { return state() == thread.Claimed })
	if err := others.post(t.Context(), "", there, mustParse(t, "- cancel: {re: x, reason: found mine}")); err != nil {
		t.Fatal(err)
	}
	home.bridge.links.All()[0].wakePoll()
	home.waitStatus(ref, thread.Cancelled)
}

// TestLinkToSomethingElse: a link to something other than an exchange fails visibly: nothing hangs, and nothing is
// received.
func TestLinkToSomethingElse(t *testing.T) {
	e := echo.New()
	answers := []string{"", "[]", `{"threads":3}`, `{"threads":[{"ref":"../../x"},{"ref":3},7]}`, strings.Repeat("[", 10_000), `{"thread":{"messages":[{"mess":3}]}}`}
	n := 0
	e.Any("/*", func(c echo.Context) error { n++; return c.String(http.StatusOK, answers[n%len(answers)]) })
	srv := httptest.NewServer(e)
	defer srv.Close()
	r := &restRemote{state: &restState{}, base: srv.URL, token: "mess_x_1", http: client.NewHTTP(client.HTTPConfig{Local: true})}
	for range 2 * len(answers) {
		if list, err := r.list(t.Context()); err == nil && len(list) > 0 {
			t.Errorf("threads = %v", list)
		}
		if _, err := r.create(t.Context(), "", wire.Obj()); err == nil {
			t.Error("a request was made")
		}
	}
	if text := remoteText([]byte(`{"error":"\u001b[31m` + strings.Repeat("x", 500) + `"}`)); len(text) > 200 || strings.ContainsRune(text, 0x1b) {
		t.Errorf("text = %q", text)
	}
}
