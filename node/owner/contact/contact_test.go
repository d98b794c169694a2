package contact_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door/doortest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/contact"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func open(c *node.Config) { c.Policy.Mode, c.Outbound.Mode = acl.Open, acl.Open }

// agent is sarah's agent, and the contact that it writes to.
type agent struct {
	t     *testing.T
	sarah *meshtest.Member
	chris *meshtest.Member
	front *door.Door
}

func newDoor(t *testing.T, sarah, chris func(*node.Config)) *agent {
	mesh := meshtest.New(t)
	d := &agent{t: t, chris: mesh.Node("chris", chris), sarah: mesh.Node("sarah", sarah)}
	api := &owner.Client{HTTP: &http.Client{Transport: client.InProcess(d.sarah.Agent)}, Door: "agent"}
	d.open(api)
	return d
}

// open serves the URLs of contacts.
func (d *agent) open(api *owner.Client) {
	contacts := contact.New(contact.Config{Client: api, Records: d.sarah.Store.Records()})
	d.front = door.New(door.Config{Open: func(c echo.Context) (door.Caller, error) { return contacts.Open(c.Param("contact")), nil }, Error: contact.ErrorOf})
}

// post sends a body to the URL of a contact, as the A2A channel of OpenClaw does: without A2A-Version.
func (d *agent) post(contact, body string) wire.Value {
	d.t.Helper()
	req := httptest.NewRequest(http.MethodPost, "/a2a/x", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	c := echo.New().NewContext(req, rec)
	c.SetParamNames("contact")
	c.SetParamValues(contact)
	if err := d.front.Serve(c, "/a2a/x"); err != nil {
		d.t.Fatal(err)
	}
	v, err := wire.Parse(rec.Body.Bytes())
	if err != nil || rec.Header().Get("Content-Type") != "application/json" {
		d.t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return v
}

func (d *agent) call(method, params string) wire.Value {
	d.t.Helper()
	return d.post(string(d.chris.ID()), `{"jsonrpc":"2.0","id":"6f1c","method":"`+method+`","params":`+params+`}`)
}

func (d *agent) send(id, text string) wire.Value {
	d.t.Helper()
	return d.call("SendMessage", `{"message":{"messageId":"`+id+`","role":"ROLE_USER","contextId":"ctx-oc-chris","parts":[{"text":"`+text+`"}]},"configuration":{"returnImmediately":true}}`)
}

func text(v wire.Value, path string) string {
	for key := range strings.SplitSeq(path, ".") {
		if v.Kind() == wire.Array {
			if v.Len() == 0 {
				return ""
			}
			v = v.At(0)
			continue
		}
		v, _ = v.Get(key)
	}
	s, _ := v.Str()
	return s
}

// await asks about a task until it has the state.
func (d *agent) await(id, state string) wire.Value {
	d.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		v := d.call("GetTask", `{"id":"`+id+`"}`)
		if text(v, "result.status.state") == state {
			return v
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the task is %s, want %s", v.JSON(), state)
		}
	}
}

// inbox returns the items of chris when there are n.
func (d *agent) inbox(n int) []owner.Item {
	d.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		list, err := d.chris.OwnerAPI().ListItems(d.t.Context(), owner.Query{Limit: 10})
		if err == nil && len(list.Items) == n {
			return list.Items
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("%d messages, %v, want %d", len(list.Items), err, n)
		}
	}
}

func (d *agent) decide(choice acl.Choice) {
	d.t.Helper()
	api := d.sarah.OwnerAPI()
	asks, err := api.ListApprovals(d.t.Context(), owner.Query{State: string(acl.AskPending), Limit: 10})
	if err != nil || len(asks.Items) != 1 {
		d.t.Fatalf("%d questions, %v", len(asks.Items), err)
	}
	if _, err := api.Decide(d.t.Context(), asks.Items[0].ID, owner.Decision{Hash: asks.Items[0].Hash, Choice: choice}, 5*time.Second); err != nil {
		d.t.Fatal(err)
	}
}

// TestContact checks the way of a message to a contact and of the answer back, and that messages of a context share a
// conversation while it is open.
func TestContact(t *testing.T) {
	d := newDoor(t, open, open)
	sent := d.send("m1", "Tea at four?")
	first := text(sent, "result.task.id")
	if text(sent, "result.task.status.state") != "TASK_STATE_WORKING" || text(sent, "result.task.contextId") != "ctx-oc-chris" || first == "" {
		t.Fatalf("sent: %s", sent.JSON())
	}
	if again := d.send("m1", "Tea at four?"); text(again, "result.task.id") != first {
		t.Errorf("the same message again: %s", again.JSON())
	}
	if other := d.send("m1", "Coffee?"); text(other, "error.data.0.reason") != "INVALID_PARAMS" {
		t.Errorf("the message id with other content: %s", other.JSON())
	}
	second := text(d.send("m2", "Or five?"), "result.task.id")
	items := d.inbox(2)
	if items[0].Conversation != items[1].Conversation {
		t.Errorf("two conversations: %s and %s", items[0].Conversation, items[1].Conversation)
	}
	payload, _ := wire.Parse([]byte(`{"action":"deliver","message":{"body":"Five is fine."}}`))
	if _, err := d.chris.OwnerAPI().Reply(t.Context(), owner.NewReply{Item: items[1].ID, Payload: payload}, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if v := d.await(second, "TASK_STATE_COMPLETED"); text(v, "result.artifacts.0.parts.0.text") != "Five is fine." {
		t.Errorf("the answer: %s", v.JSON())
	}
	d.await(first, "TASK_STATE_WORKING") // the answer names the second message
	payload, _ = wire.Parse([]byte(`{"action":"deliver","message":{"body":"Four is too early."}}`))
	if _, err := d.chris.OwnerAPI().Reply(t.Context(), owner.NewReply{Item: items[0].ID, Payload: payload}, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{first: "Four is too early.", second: "Five is fine."} {
		if v := d.await(id, "TASK_STATE_COMPLETED"); text(v, "result.artifacts.0.parts.0.text") != want {
			t.Errorf("the answer: %s, want %q", v.JSON(), want)
		}
	}
	if v := d.post("am_other", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"`+second+`"}}`); text(v, "error.data.0.reason") != "TASK_NOT_FOUND" {
		t.Errorf("the task at the URL of another contact: %s", v.JSON())
	}
	// After the end of the conversation, the context goes on in another one.
	if _, err := d.sarah.OwnerAPI().CloseConversation(t.Context(), string(items[0].Conversation), owner.Close{Status: "completed"}, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	d.send("m3", "One more thing")
	if items := d.inbox(3); items[2].Conversation == items[1].Conversation {
		t.Error("a message went to a conversation that has ended")
	}
}

// TestContactAtOnce checks that the first messages of a context open one conversation if they come at the same time.
func TestContactAtOnce(t *testing.T) {
	d := newDoor(t, open, open)
	var sends sync.WaitGroup
	for i := range 4 {
		sends.Go(func() { d.send(fmt.Sprint("m", i), "Tea?") })
	}
	sends.Wait()
	items := d.inbox(4)
	for _, item := range items {
		if item.Conversation != items[0].Conversation {
			t.Errorf("two conversations: %s and %s", items[0].Conversation, item.Conversation)
		}
	}
}

// TestContactApproval checks that a decision stays the owner's: the task waits, and is rejected or goes on.
func TestContactApproval(t *testing.T) {
	d := newDoor(t, func(c *node.Config) { c.Policy.Mode, c.Outbound.Mode = acl.Open, acl.Approval }, open)
	for _, tt := range []struct {
		choice acl.Choice
		state  string
	}{{acl.Reject, "TASK_STATE_REJECTED"}, {acl.Approve, "TASK_STATE_COMPLETED"}} {
		sent := d.send("m-"+string(tt.choice), "Buy it")
		id := text(sent, "result.task.id")
		if text(sent, "result.task.status.state") != "TASK_STATE_WORKING" || text(sent, "result.task.status.message.parts.0.text") != "waits for your owner" {
			t.Fatalf("sent: %s", sent.JSON())
		}
		d.decide(tt.choice)
		if tt.choice == acl.Approve {
			payload, _ := wire.Parse([]byte(`{"action":"deliver","message":{"body":"bought"}}`))
			if _, err := d.chris.OwnerAPI().Reply(t.Context(), owner.NewReply{Item: d.inbox(1)[0].ID, Payload: payload}, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		d.await(id, tt.state)
	}
}

// TestContactApprovedLater: a task whose message the owner approves after the answer to another message of its context
// is not completed by that answer.
func TestContactApprovedLater(t *testing.T) {
	d := newDoor(t, func(c *node.Config) { c.Policy.Mode, c.Outbound.Mode = acl.Open, acl.Approval }, open)
	reply := func(item owner.Item, body string) {
		t.Helper()
		payload, _ := wire.Parse([]byte(`{"action":"deliver","message":{"body":"` + body + `"}}`))
		if _, err := d.chris.OwnerAPI().Reply(t.Context(), owner.NewReply{Item: item.ID, Payload: payload}, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	d.send("m0", "Hello")
	d.decide(acl.Approve) // m1 and m2 continue its conversation
	d.inbox(1)
	first, second := text(d.send("m1", "Tea?"), "result.task.id"), text(d.send("m2", "Cake?"), "result.task.id")
	asks, err := d.sarah.OwnerAPI().ListApprovals(t.Context(), owner.Query{State: string(acl.AskPending), Limit: 10})
	if err != nil || len(asks.Items) != 2 {
		t.Fatalf("%d questions, %v", len(asks.Items), err)
	}
	slices.SortFunc(asks.Items, func(a, b owner.Approval) int { return a.Created.Compare(b.Created) })
	approve := func(a owner.Approval) {
		t.Helper()
		if _, err := d.sarah.OwnerAPI().Decide(t.Context(), a.ID, owner.Decision{Hash: a.Hash, Choice: acl.Approve}, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	approve(asks.Items[0])
	reply(d.inbox(2)[1], "tea it is")
	d.await(first, "TASK_STATE_COMPLETED")
	approve(asks.Items[1])
	item := d.inbox(3)[2]
	if item.Conversation != d.inbox(3)[1].Conversation {
		t.Fatal("the messages are in two conversations")
	}
	d.await(second, "TASK_STATE_WORKING")
	reply(item, "no cake")
	for id, want := range map[string]string{first: "tea it is", second: "no cake"} {
		if v := d.await(id, "TASK_STATE_COMPLETED"); text(v, "result.artifacts.0.parts.0.text") != want {
			t.Errorf("the answer: %s, want %q", v.JSON(), want)
		}
	}
}

// TestContactDoor runs the tests of all back ends of the A2A door.
func TestContactDoor(t *testing.T) {
	d := newDoor(t, open, open)
	e := echo.New()
	for _, path := range []string{"/a2a/:contact", "/a2a/:contact/*"} {
		e.Any(path, func(c echo.Context) error { return d.front.Serve(c, "/a2a/"+c.Param("contact")) })
	}
	server := httptest.NewServer(e)
	defer server.Close()
	doortest.Run(t, doortest.Target{URL: server.URL + "/a2a/" + string(d.chris.ID())})
}

// TestContactErrors checks bad requests, and the bound of what an agent sends.
func TestContactErrors(t *testing.T) {
	d := newDoor(t, open, open)
	for name, tt := range map[string]struct{ body, reason string }{
		"no JSON":     {`x`, "PARSE_ERROR"},
		"10 MB":       {`{"x":"` + strings.Repeat("x", 10<<20) + `"}`, "OUT_OF_RANGE"},
		"version":     {`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"user","kind":"message","parts":[{"kind":"text","text":"x"}]}}}`, "VERSION_NOT_SUPPORTED"},
		"list":        {`{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}`, "UNSUPPORTED_OPERATION"},
		"push":        {`{"jsonrpc":"2.0","id":1,"method":"ListTaskPushNotificationConfigs","params":{"taskId":"x"}}`, "PUSH_NOTIFICATION_NOT_SUPPORTED"},
		"no task":     {`{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}`, "TASK_NOT_FOUND"},
		"no contact":  {`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}}`, "INVALID_PARAMS"},
		"the method":  {`{"jsonrpc":"2.0","id":1,"method":"Forget","params":{}}`, "METHOD_NOT_FOUND"},
		"two content": {`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x","url":"https://x/"}]}}}`, "INVALID_PARAMS"},
	} {
		if v := d.post("nobody", tt.body); text(v, "error.data.0.reason") != tt.reason {
			t.Errorf("%s: %s, want %s", name, v.JSON(), tt.reason)
		}
	}
	refused := 0
	for i := range 40 {
		if text(d.send(fmt.Sprint("m", i), "x"), "error.data.0.reason") == "RESOURCE_EXHAUSTED" {
			refused++
		}
	}
	if refused < 10 {
		t.Errorf("%d of 40 messages were refused", refused)
	}
}

// TestContactRoom checks that an agent that writes a lot still gets a task for each message that leaves.
func TestContactRoom(t *testing.T) {
	d := newDoor(t, open, open)
	for _, ns := range []string{"a2a/contact-tasks", "a2a/contact-contexts"} {
		for i := range 10 {
			var changes []store.Change
			for j := range 500 {
				changes = append(changes, store.Change{IfRev: store.Absent, Record: store.Record{
					NS: ns, Key: fmt.Sprintf("%d-%d", i, j), Body: []byte("{}"), Expires: time.Now().Add(time.Duration(1+i) * time.Hour),
				}})
			}
			if err := d.sarah.Store.Records().Apply(t.Context(), changes, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	id := text(d.send("m1", "Tea at four?"), "result.task.id")
	if v := d.call("GetTask", `{"id":"`+id+`"}`); id == "" || text(v, "result.status.state") != "TASK_STATE_WORKING" {
		t.Errorf("the task: %s", v.JSON())
	}
	if _, err := d.sarah.Store.Records().Get(t.Context(), "a2a/contact-tasks", "9-0", time.Now()); err != nil {
		t.Errorf("a newer task: %v", err)
	}
}

// TestContactSameConversation checks that a stranger that uses the id of a conversation with a contact does not stop
// its answers.
func TestContactSameConversation(t *testing.T) {
	mesh := meshtest.New(t)
	d := &agent{t: t, chris: mesh.Node("chris", open), sarah: mesh.Node("sarah", open)}
	api := &owner.Client{HTTP: &http.Client{Transport: client.InProcess(d.sarah.Agent)}, Door: "agent"}
	d.open(api)
	id := text(d.send("m1", "Tea at four?"), "result.task.id")
	payload, _ := wire.Parse([]byte(`{"action":"deliver","message":{"body":"hi"}}`))
	m := owner.NewMessage{To: string(d.sarah.ID()), Conversation: d.inbox(1)[0].Conversation, Intent: wire.Deliver, Payload: payload}
	if _, err := mesh.Node("stranger", open).OwnerAPI().Send(t.Context(), m, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	d.await(id, "TASK_STATE_WORKING")
}

// TestContactClosed checks that a task keeps its answer if the contact closes the conversation after the answer.
func TestContactClosed(t *testing.T) {
	for _, status := range []string{"completed", "failed"} {
		d := newDoor(t, open, func(c *node.Config) {
			open(c)
			c.Routes = []node.Route{{Pattern: "*", Name: "agent", Repeatable: true, Handler: handler(func(hook.Call) hook.Answer {
				v, _ := wire.Parse([]byte(`{"action":"deliver","message":{"body":"at once"}}`))
				return hook.Answer{Payload: &v}
			})}}
		})
		id := text(d.send("m1", "Tea at four?"), "result.task.id")
		d.await(id, "TASK_STATE_COMPLETED")
		if _, err := d.chris.OwnerAPI().CloseConversation(t.Context(), string(d.inbox(1)[0].Conversation), owner.Close{Status: status}, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if v := d.await(id, "TASK_STATE_COMPLETED"); text(v, "result.artifacts.0.parts.0.text") != "at once" {
			t.Errorf("after the status %s, the task is %s", status, v.JSON())
		}
	}
}

// TestContactPush checks that an agent that asks for no task gets the answers through its hook, also an answer that
// comes at once.
func TestContactPush(t *testing.T) {
	pushed := make(chan string, 10)
	d := newDoor(t, func(c *node.Config) {
		open(c)
		c.Routes = []node.Route{{Pattern: "*", Name: "agent", Repeatable: true, Replies: true, Handler: handler(func(call hook.Call) hook.Answer {
			pushed <- string(call.Payload)
			return hook.Answer{}
		})}}
	}, func(c *node.Config) {
		open(c)
		c.Routes = []node.Route{{Pattern: "*", Name: "agent", Repeatable: true, Handler: handler(func(hook.Call) hook.Answer {
			v, _ := wire.Parse([]byte(`{"action":"deliver","message":{"body":"at once"}}`))
			return hook.Answer{Payload: &v}
		})}}
	})
	id := text(d.send("m1", "Tea at four?"), "result.task.id")
	select {
	case payload := <-pushed:
		if !strings.Contains(payload, "at once") {
			t.Errorf("the hook gets %s", payload)
		}
	case <-time.After(10 * time.Second):
		t.Error("the hook gets no answer")
	}
	if v := d.await(id, "TASK_STATE_COMPLETED"); text(v, "result.artifacts.0.parts.0.text") != "at once" {
		t.Errorf("the task: %s", v.JSON())
	}
}

// handler is a hook that a test writes as a function.
type handler func(hook.Call) hook.Answer

func (f handler) Handle(_ context.Context, c hook.Call) (hook.Answer, error) { return f(c), nil }

// TestRecordedOpenClaw posts what a real OpenClaw gateway sent to the URL of a contact: the contact gets the
// text. TestRealGateway in cmd/agentmesh records it.
func TestRecordedOpenClaw(t *testing.T) {
	request, err := os.ReadFile("testdata/openclaw.json")
	if err != nil {
		t.Fatal(err)
	}
	d := newDoor(t, open, open)
	v := d.post(string(d.chris.ID()), string(request))
	if text(v, "result.task.id") == "" || text(v, "result.task.contextId") != "ctx-oc-sarah" {
		t.Errorf("the gateway gets %s", v.JSON())
	}
	if item := d.inbox(1)[0]; !strings.Contains(string(item.Payload), "Come to tea?") {
		t.Errorf("the contact gets %s", item.Payload)
	}
}
