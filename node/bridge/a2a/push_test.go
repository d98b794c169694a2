package a2a_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// webhook is a server that records what it gets.
type webhook struct {
	*httptest.Server
	got  chan wire.Value
	head chan http.Header
	fail atomic.Int32 // answers so many requests with 503
}

func newWebhook(t *testing.T) *webhook {
	w := &webhook{got: make(chan wire.Value, 100), head: make(chan http.Header, 100)}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.fail.Add(-1) >= 0 {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.got <- parse(t, string(data))
		w.head <- r.Header
	}))
	t.Cleanup(w.Close)
	return w
}

// await returns the first notification about a task with the state.
func (w *webhook) await(t *testing.T, state string) wire.Value {
	t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case v := <-w.got:
			if text(v, "task.status.state") == state {
				return v
			}
		case <-timeout:
			t.Fatalf("no notification with %s", state)
		}
	}
}

// TestPush checks A2A-13: configurations with all methods and in both bindings, credentials, and a notification for
// each state.
func TestPush(t *testing.T) {
	h := serve(t, echo(t), approval, nil)
	hook := newWebhook(t)
	config := `"taskPushNotificationConfig":{"id":"c1","url":"` + hook.URL + `/hook","token":"tok-1","authentication":{"scheme":"Bearer","credentials":"cred-1"}}`
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later+","+config)), "result.task.id")
	if list := h.rpc("ann", "ListTaskPushNotificationConfigs", `{"taskId":"`+id+`"}`); text(list, "result.configs.0.id") != "c1" || text(list, "result.configs.0.taskId") != id {
		t.Fatalf("the configurations are %s", list.JSON())
	}
	hook.await(t, "TASK_STATE_WORKING")
	head := <-hook.head
	if head.Get("X-A2A-Notification-Token") != "tok-1" || head.Get("Authorization") != "Bearer cred-1" || head.Get("Content-Type") != "application/a2a+json" {
		t.Errorf("the header of a notification is %v", head)
	}
	h.decide(acl.Approve)
	if v := hook.await(t, "TASK_STATE_COMPLETED"); text(v, "task.artifacts.0.parts.0.text") != "you said: hello" || text(v, "task.id") != id {
		t.Errorf("the last notification is %s", v.JSON())
	}
	status, _, body := h.request("ann", "POST", h.base+"/tasks/"+id+"/pushNotificationConfigs", `{"id":"c/2","url":"`+hook.URL+`"}`)
	if status != 200 || text(parse(t, body), "id") != "c/2" {
		t.Errorf("create over HTTP+JSON: %d %s", status, body)
	}
	if status, _, body := h.request("ann", "GET", h.base+"/tasks/"+id+"/pushNotificationConfigs/c%2F2", ""); status != 200 || text(parse(t, body), "url") != hook.URL {
		t.Errorf("get over HTTP+JSON: %d %s", status, body)
	}
	if status, _, _ := h.request("ann", "DELETE", h.base+"/tasks/"+id+"/pushNotificationConfigs/c%2F2", ""); status != 200 {
		t.Errorf("delete over HTTP+JSON: %d", status)
	}
	if v := h.rpc("ann", "GetTaskPushNotificationConfig", `{"taskId":"`+id+`","id":"c/2"}`); text(v, "error.data.0.reason") != "TASK_NOT_FOUND" {
		t.Errorf("a deleted configuration: %s", v.JSON())
	}
	if v := h.rpc("ann", "DeleteTaskPushNotificationConfig", `{"taskId":"`+id+`","id":"c1"}`); at(v, "result").Kind() != wire.Object {
		t.Errorf("delete: %s", v.JSON())
	}
	for i := range 12 {
		v := h.rpc("ann", "CreateTaskPushNotificationConfig", `{"taskId":"`+id+`","id":"n`+string(rune('a'+i))+`","url":"`+hook.URL+`"}`)
		if full := text(v, "error.data.0.reason") == "UNSUPPORTED_OPERATION"; full != (i >= 10) {
			t.Errorf("configuration %d: %s", i+1, v.JSON())
		}
	}
}

// TestPushOnce checks that a webhook that takes its time gets each state once, in order, although the task changes while
// it does so.
func TestPushOnce(t *testing.T) {
	t.Parallel()
	h := serve(t, echo(t), approval, nil)
	got, goOn := make(chan string, 100), make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		v := parse(t, string(data))
		// the message id tells two states of one millisecond apart
		got <- text(v, "task.status.state") + " " + text(v, "task.status.timestamp") + " " + text(v, "task.status.message.messageId")
		<-goOn
	}))
	t.Cleanup(hook.Close)
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later+`,"taskPushNotificationConfig":{"url":"`+hook.URL+`"}`)), "result.task.id")
	states := []string{<-got} // the webhook has not answered yet
	h.decide(acl.Approve)
	h.await("ann", id, "TASK_STATE_COMPLETED")
	close(goOn)
	for deadline := time.Now().Add(10 * time.Second); h.bridge.PushesDue(t.Context()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the configuration is not forgotten")
		}
	}
	for len(got) > 0 {
		states = append(states, <-got)
	}
	for i, state := range states {
		if slices.Contains(states[:i], state) {
			t.Errorf("the webhook got %q", states)
			break
		}
	}
	if last := states[len(states)-1]; !strings.HasPrefix(last, "TASK_STATE_COMPLETED") {
		t.Errorf("the last notification is %s", last)
	}
}

// TestPushOfEndedTask checks that a configuration of a task that has ended is not kept longer than the task.
func TestPushOfEndedTask(t *testing.T) {
	h := serve(t, echo(t), nil, nil)
	id := text(h.send("ann", "m1", "", "hello"), "result.task.id")
	if v := h.rpc("ann", "CreateTaskPushNotificationConfig", `{"taskId":"`+id+`","url":"https://example.com/"}`); text(v, "result.taskId") != id {
		t.Fatalf("create: %s", v.JSON())
	}
	page, err := h.node.Store.Records().List(t.Context(), "a2a/push", "", "", 10, time.Now())
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("%d configurations, %v", len(page.Records), err)
	}
	if end := page.Records[0].Expires; end.After(time.Now().Add(7 * 24 * time.Hour)) {
		t.Errorf("the configuration is kept until %s", end)
	}
}

// TestPushIsGuarded checks that a webhook cannot name an address of the owner's network, by its number, by
// a name, or by a scheme that is not https.
func TestPushIsGuarded(t *testing.T) {
	var calls atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	defer inside.Close()
	public := client.NewHTTP(client.HTTPConfig{})
	defer public.Close()
	h := serve(t, nil, nil, func(c *a2a.Config) { c.Local, c.HTTP = false, public })
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later)), "result.task.id")
	port := inside.URL[strings.LastIndexByte(inside.URL, ':'):]
	for _, bad := range []string{
		inside.URL, "http://10.0.0.1/", "https://10.0.0.1/", "https://[::1]" + port + "/", "https://0x7f.1/", "https://169.254.169.254/latest",
		"http://x.example/", "ftp://x.example/", "https://user:pass@x.example/", "https://x.example:22/", "//x.example/", "", "https://" + strings.Repeat("x", 2048),
	} {
		v := h.rpc("ann", "CreateTaskPushNotificationConfig", `{"taskId":"`+id+`","url":"`+bad+`"}`)
		if text(v, "error.data.0.reason") != "INVALID_PARAMS" {
			t.Errorf("%s: %s", bad, v.JSON())
		}
	}
	v := h.rpc("ann", "CreateTaskPushNotificationConfig", `{"taskId":"`+id+`","url":"https://x.example:22/"}`)
	if !goldentest.Says(t, "port", text(v, "error.message")) {
		t.Errorf("the reason is not the port: %s", v.JSON())
	}
	for _, bad := range []string{`"token":"a\r\nX: y"`, `"authentication":{"scheme":"Bearer\n"}`, `"authentication":{"credentials":"x"}`, `"token":"` + strings.Repeat("x", 2000) + `"`} {
		v := h.rpc("ann", "CreateTaskPushNotificationConfig", `{"taskId":"`+id+`","url":"https://x.example/",`+bad+`}`)
		if text(v, "error.data.0.reason") != "INVALID_PARAMS" {
			t.Errorf("%s: %s", bad, v.JSON())
		}
	}
	// A name that leads inside passes the check of the URL, and is stopped when it is dialed.
	v = h.rpc("ann", "CreateTaskPushNotificationConfig", `{"taskId":"`+id+`","url":"https://localhost`+port+`/"}`)
	if text(v, "result.url") == "" {
		t.Fatalf("a name: %s", v.JSON())
	}
	h.rpc("ann", "CancelTask", `{"id":"`+id+`"}`)
	for deadline := time.Now().Add(10 * time.Second); h.bridge.PushesDue(t.Context()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the notification is not given up")
		}
	}
	if calls.Load() > 0 {
		t.Error("a webhook reached the owner's network")
	}
}
