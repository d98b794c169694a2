package web_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// allPages are the pages that exist before anything happened.
var allPages = []string{"", "approvals", "inbox", "conversations", "compose", "people", "discover", "settings", "outbox", "notices", "log", "profile", "connect"}

// link returns the target of the first link or form on a page that begins with path.
func link(t *testing.T, body, path string) string {
	t.Helper()
	found := regexp.MustCompile(`(?:href|action)="/owner/page/(` + regexp.QuoteMeta(path) + `[^"#]+)"`).FindStringSubmatch(body)
	if found == nil {
		t.Fatalf("there is no link to %s…:\n%s", path, body)
	}
	return found[1]
}

// choices returns the form of an approval's page: the hidden hash and the given choice.
func choices(t *testing.T, body string, choice acl.Choice) url.Values {
	t.Helper()
	hash := regexp.MustCompile(`name="hash" value="([0-9a-f]{64})"`).FindStringSubmatch(body)
	if hash == nil || !strings.Contains(body, fmt.Sprintf(`name="choice" value="%s"`, choice)) {
		t.Fatalf("the page offers no %s:\n%s", choice, body)
	}
	return url.Values{"hash": {hash[1]}, "choice": {string(choice)}}
}

func TestPagesOfANewNode(t *testing.T) {
	mesh := meshtest.New(t)
	p := servePage(t, mesh.Node("sarah", nil))
	for _, path := range allPages {
		if body := p.must(path); !strings.Contains(body, "<h1>") || !strings.Contains(body, `aria-current="page"`) {
			t.Errorf("%q is no page:\n%s", path, body)
		}
	}
	for _, path := range []string{"approvals/ask_none", "inbox/in_none", "conversations/am_x/conv_x", "people/" + strings.Repeat("x", 600), "people/", "none"} {
		if status, _ := p.get(path); status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
	for _, path := range []string{"conversations/am_x/conv_x/read", "conversations/%00/%00/read"} {
		if status, _ := p.post(path, nil); status != http.StatusNotFound {
			t.Errorf("POST %s: %d", path, status)
		}
	}
}

// TestPageTalks writes, answers, closes and pauses on the page.
func TestPageTalks(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	sarah := mesh.Node("sarah", nil)
	p := servePage(t, sarah)
	for _, bad := range []url.Values{
		{"to": {"nobody"}, "kind": {"message"}, "text": {"hello"}}, {"to": {string(chris.ID())}, "kind": {"message"}, "text": {" "}},
		{"to": {string(chris.ID())}, "kind": {"exact"}, "intent": {"mesh.message"}, "payload": {"{"}}, {"to": {"am_unknown"}, "kind": {"message"}, "text": {"x"}},
		{"to": {string(chris.ID())}, "kind": {"exact"}, "intent": {"nonsense"}, "payload": {"{}"}},
		{"to": {string(chris.ID())}, "kind": {"meeting"}, "title": {"Coffee"}, "duration": {"30m"}},
		{"to": {string(chris.ID())}, "kind": {"meeting"}, "title": {"Coffee"}, "time": {"2027-02-19T10:00"}},
		{"to": {string(chris.ID())}, "kind": {"meeting"}, "title": {"Coffee"}, "time": {"tomorrow"}, "duration": {"30m"}},
		{"to": {string(chris.ID())}, "kind": {"exact"}, "intent": {"mesh.schedule"}, "payload": {`{"action":"propose"}`}},
	} {
		status, body := p.post("compose", bad)
		if status < 400 || status >= 500 || !strings.Contains(body, `role="alert"`) || !strings.Contains(body, `value="`+bad.Get("to")+`"`) {
			t.Errorf("send %v: %d\n%s", bad, status, body)
		}
	}
	status, body := p.post("compose", url.Values{"to": {string(chris.ID())}, "kind": {"message"}, "text": {"Hello <b>Chris</b>"}})
	if status != http.StatusOK || !goldentest.Page(t, "send", body) || !strings.Contains(body, "Hello &lt;b&gt;Chris&lt;/b&gt;") {
		t.Fatalf("send: %d\n%s", status, body)
	}
	talk := link(t, body, "conversations/am_")
	talk = strings.TrimSuffix(strings.TrimSuffix(talk, "/reply"), "/close")
	if status, body := p.post(talk+"/reply", url.Values{"text": {""}}); status != http.StatusBadRequest || !goldentest.Page(t, "an empty answer", body) {
		t.Errorf("an empty answer: %d", status)
	}
	if status, body := p.post(talk+"/reply", url.Values{"text": {"And one\r\nmore thing"}}); status != http.StatusOK || !strings.Contains(body, ">And one\nmore thing<") {
		t.Errorf("answer: %d", status)
	}
	waitFor(t, "both messages", func() bool {
		items, _, err := chris.Inbox(t.Context(), "", "", 10)
		return err == nil && len(items) == 2 && strings.Contains(string(items[0].Payload)+string(items[1].Payload), `"And one\nmore thing"`)
	})
	if status, body := p.post(talk+"/close", url.Values{"status": {"done"}}); status != http.StatusBadRequest {
		t.Errorf("close with another status: %d\n%s", status, body)
	}
	if status, body := p.post(talk+"/close", url.Values{"status": {"completed"}}); status != http.StatusOK || !goldentest.Page(t, "close", body) {
		t.Errorf("close: %d\n%s", status, body)
	}
	waitFor(t, "the close", func() bool { return strings.Contains(p.must(talk), ">completed<") })
	if body := p.must(talk); !strings.Contains(body, "hash chain intact") || strings.Contains(body, "/reply") {
		t.Errorf("after the close:\n%s", body)
	}
	if body := p.must("outbox"); !strings.Contains(body, ">delivered<") {
		t.Errorf("the outbox:\n%s", body)
	}
	for want, value := range map[string]string{"Paused.": "yes", "The agent accepts messages again.": "no"} {
		if status, body := p.post("pause", url.Values{"paused": {value}}); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("pause %s: %d", value, status)
		}
		if sarah.IsPaused() != (value == "yes") {
			t.Errorf("paused = %t", sarah.IsPaused())
		}
	}
}

func TestPageInbox(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", unlimited)
	chris := mesh.Stranger("chris")
	for i := range 30 {
		payload := fmt.Sprintf(`{"action":"deliver","message":{"body":"message %d"}}`, i)
		d := chris.Draft(sarah.ID(), wire.Deliver, payload)
		d.Conversation = "conv_one"
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
		taken := time.Now().UnixMilli()
		waitFor(t, "the next moment", func() bool { return time.Now().UnixMilli() > taken }) // ids of one have no order
	}
	p := servePage(t, sarah)
	body := p.must("inbox")
	if !strings.Contains(body, "message 29") || strings.Contains(body, "message 4<") || strings.Index(body, "message 29") > strings.Index(body, "message 28") {
		t.Errorf("the newest does not come first:\n%s", body)
	}
	older := p.must(strings.ReplaceAll(link(t, body, "inbox?state=&amp;before="), "&amp;", "&"))
	for i := range 5 {
		if !strings.Contains(older, fmt.Sprintf("message %d<", i)) {
			t.Errorf("the older ones lack message %d", i)
		}
	}
	if strings.Contains(older, "message 5<") {
		t.Error("a message is on two pages")
	}
	path := link(t, body, "inbox/in_")
	if body := p.must(path); !strings.Contains(body, "signature checked") || !strings.Contains(body, "message 29") {
		t.Errorf("a message:\n%s", body)
	}
	if status, body := p.post(path+"/ack", url.Values{}); status != http.StatusOK || !goldentest.Page(t, "acknowledge", body) {
		t.Errorf("acknowledge: %d", status)
	}
	if items, _, err := sarah.Inbox(t.Context(), owner.ItemRead, "", 10); err != nil || len(items) != 1 {
		t.Errorf("%d are read: %v", len(items), err)
	}
	if status, _ := p.get("inbox?before=nonsense"); status != http.StatusBadRequest {
		t.Errorf("an invalid place in the list: %d", status)
	}
}

// TestPageRefusals: refused messages of strangers cost no memory.
func TestPageRefusals(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Policy.Mode = acl.Allowlist })
	chris := mesh.Stranger("chris")
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusForbidden)
	for i := range 10_000 {
		body := fmt.Appendf(nil, `{"agentmesh":"0.1.0","message_id":"msg_%d","conversation_id":"conv_x","from":"am_%d<b>","to":"am_y"`, i, i)
		if _, err := sarah.Receive(t.Context(), body); err == nil {
			t.Fatal("half a message is accepted")
		}
	}
	list, _ := sarah.OwnerAPI().Refusals()
	if len(list) != 2 || list[0].Times != 10_000 || list[0].Proven || !list[1].Proven || list[1].From != string(chris.ID) {
		t.Fatalf("refusals = %+v", list)
	}
	p := servePage(t, sarah)
	body := p.must("settings")
	for _, want := range []string{"10000 times, last", "the sender may not contact this agent", string(chris.ID), "UNAUTHORIZED 403"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	for i := range 200 { // each proven sender gets its own entry, up to a maximum
		in := inbound(to("ann", "conv_1", "hello"), fmt.Sprintf("am_%d", i), "")
		in.Verified = bridge.VerifiedSignature
		if _, err := sarah.Accept(t.Context(), in); err == nil {
			t.Fatal("a sender that is not listed is let in")
		}
	}
	if list, _ := sarah.OwnerAPI().Refusals(); len(list) != 64 {
		t.Errorf("%d refusals are kept, want 64", len(list))
	}
}

// hostile returns texts that must never act as markup.
func hostile(t *testing.T) []string {
	t.Helper()
	list := []string{
		"<script>window.owned=1</script>", `"><img src=x onerror="window.owned=1">`, "\u202e\u2066gnp.exe", "a" + strings.Repeat("\u0301", 10_000),
		"</li></ul></main><h1>Approved by the owner</h1>", "{{.Data}}", "' hx-get='/owner/page/pause' hx-trigger='load", strings.Repeat("W", 20_000),
	}
	if dir := os.Getenv("AGENTMESH_CORPORA"); dir != "" {
		data, err := os.ReadFile(filepath.Join(dir, "blns", "blns.json"))
		if err != nil {
			t.Fatal(err)
		}
		var naughty []string
		if err := json.Unmarshal(data, &naughty); err != nil {
			t.Fatal(err)
		}
		list = append(list, strings.Join(naughty, "\n"))
	}
	return list
}

// foreignMarkup matches markup that is not ours, and what the page's content policy would block.
var foreignMarkup = regexp.MustCompile(`(?i)<script(?:\s[^>]*)?>[^<]|<[^>]*\son[a-z]+\s*=|<[^>]*\sstyle\s*=|<style|<img src=x|<h1>Approved|<[^>]*hx-trigger='`)

func TestPageHostileText(t *testing.T) { // THREATS 28, 30
	for i, text := range hostile(t) {
		mesh := meshtest.New(t)
		sarah := mesh.Node("sarah", mode(acl.Approval))
		chris := mesh.Stranger("chris")
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		payload := fmt.Sprintf(`{"action":%s,"message":{"body":%[1]s},"event":{"title":%[1]s}}`, quoted)
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Schedule, payload))), http.StatusAccepted)
		p := servePage(t, sarah)
		paths := append([]string{}, allPages...)
		paths = append(paths, link(t, p.must("approvals"), "approvals/ask_"), link(t, p.must("inbox"), "inbox/in_"), link(t, p.must("conversations"), "conversations/am_"))
		for _, path := range paths {
			if bad := foreignMarkup.FindString(p.must(path)); bad != "" {
				t.Errorf("text %d acts on %q: %s", i, path, bad)
			}
		}
	}
}

// TestPageLog: the newest decisions come first, and none is missing.
func TestPageLog(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", nil)
	p := servePage(t, sarah)
	for i := range 40 {
		if err := sarah.SetPause(t.Context(), i%2 == 0, fmt.Sprintf("door-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	body := p.must("log")
	if newest, before := strings.Index(body, "by <bdi class=\"line\">door-39<"), strings.Index(body, ">door-38<"); newest < 0 || before < newest {
		t.Errorf("the newest does not come first:\n%s", body)
	}
	var seen strings.Builder
	seen.WriteString(body)
	for page := 0; strings.Contains(body, ">Older<") && page < 5; page++ {
		body = p.must(link(t, body, "log?before="))
		seen.WriteString(body)
	}
	for i := range 40 {
		if n := strings.Count(seen.String(), fmt.Sprintf(">door-%d<", i)); n != 1 {
			t.Errorf("entry %d is shown %d times", i, n)
		}
	}
	if status, _ := p.get("log?before=x"); status != http.StatusBadRequest {
		t.Errorf("an invalid place in the list: %d", status)
	}
}

// TestPageOutgoing: a message that the owner's agent wants to send waits, with the proof of the recipient, and leaves
// when the owner releases it (AM-50).
func TestPageOutgoing(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Outbound.Mode = acl.Approval })
	p := servePage(t, sarah)
	status, body := p.post("compose", url.Values{"to": {string(chris.ID())}, "kind": {"message"}, "text": {"May I?"}})
	if status != http.StatusOK || !goldentest.Page(t, "send", body) {
		t.Fatalf("send: %d\n%s", status, body)
	}
	for _, want := range []string{"Your agent wants to send", string(chris.ID()), "May I?", "recipient › fingerprint", chris.Card().Endpoint, "Send it", "Do not send", "would be sent"} {
		if !strings.Contains(body, want) {
			t.Errorf("the question lacks %q:\n%s", want, body)
		}
	}
	path := link(t, body, "approvals/ask_")
	if status, body := p.post(path, choices(t, p.must(path), acl.Approve)); status != http.StatusOK {
		t.Errorf("approve: %d\n%s", status, body)
	}
	waitFor(t, "the message", func() bool {
		items, _, err := chris.Inbox(t.Context(), "", "", 10)
		return err == nil && len(items) == 1
	})
}

// switchedHook is a hook that cannot be reached while off is true.
type switchedHook struct{ off atomic.Bool }

func (h *switchedHook) Handle(context.Context, hook.Call) (hook.Answer, error) {
	if h.off.Load() {
		return hook.Answer{}, &hook.Error{Fault: hook.Unreachable, Route: "gateway", Stderr: "<b>no gateway</b>"}
	}
	return hook.Answer{}, nil
}

// TestPageRetriesHook: the page of a message whose hook could not be reached says why, and has a button that runs the
// hook again.
func TestPageRetriesHook(t *testing.T) {
	mesh := meshtest.New(t)
	gateway := &switchedHook{}
	gateway.off.Store(true)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		unlimited(cfg)
		cfg.Routes = []node.Route{{Pattern: "*", Name: "gateway", Handler: gateway}}
	})
	chris := mesh.Stranger("chris")
	meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
	p := servePage(t, sarah)
	path := link(t, p.must("inbox?state=waiting"), "inbox/in_")
	if body := p.must(path); !strings.Contains(body, "could not be reached") || !strings.Contains(body, "&lt;b&gt;no gateway") || !strings.Contains(body, `id="retry"`) {
		t.Fatalf("a waiting message:\n%s", body)
	}
	gateway.off.Store(false)
	if status, body := p.post(path+"/retry", url.Values{}); status != http.StatusOK || !goldentest.Page(t, "retry", body) {
		t.Errorf("retry: %d\n%s", status, body)
	}
	waitFor(t, "the hook answers", func() bool { return strings.Contains(p.must(path), ">answered<") })
	if strings.Contains(p.must(path), `id="retry"`) {
		t.Error("an answered message can be retried")
	}
	if status, _ := p.post(path+"/retry", url.Values{}); status != http.StatusConflict {
		t.Errorf("retry of an answered message: %d", status)
	}
}

// TestPageMarksConversationRead: looking at a conversation changes nothing in the inbox; a button marks its messages,
// and no others, as read.
func TestPageMarksConversationRead(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", mode(acl.Open))
	for _, name := range []string{"chris", "chris", "ann"} {
		s := mesh.Stranger(name)
		must(t, meshtest.Post(t, sarah.URL, s.Sign(s.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
	}
	p := servePage(t, sarah)
	count := func() int {
		t.Helper()
		n, err := sarah.OwnerAPI().CountItems(t.Context(), owner.NeedsOwner, 50)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	path := link(t, p.must("conversations"), "conversations/am_")
	if body := p.must(path); !strings.Contains(body, `id="read"`) || count() != 3 {
		t.Fatalf("%d are new:\n%s", count(), body)
	}
	if status, body := p.post(path+"/read", url.Values{}); status != http.StatusOK || !goldentest.Page(t, "mark as read", body) || strings.Contains(body, `id="read"`) {
		t.Errorf("mark: %d\n%s", status, body)
	}
	if n := count(); n != 2 {
		t.Errorf("%d are new, want 2", n)
	}
}
