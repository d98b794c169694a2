package mew

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/waiting"
)

// TestPage: the owner sees a space live on the page and decides there; text of participants has no effect on the page.
func TestPage(t *testing.T) {
	r := start(t)
	owner := httpapi.NewOwner(httpapi.OwnerConfig{})
	MountPages(owner.Pages(), r.G, nil)
	call := func(method, path string, form url.Values) (int, string) {
		t.Helper()
		req := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+httpapi.PagePath+path, strings.NewReader(form.Encode()))
		if form != nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		w := httptest.NewRecorder()
		owner.Handler().ServeHTTP(w, req)
		return w.Result().StatusCode, w.Body.String()
	}
	alice := r.Join("alice-token")
	alice.Send(`{"id":"p1","kind":"mcp/proposal","payload":{"method":"<script>alert(1)</script>\u202e"}}`,
		`{"id":"r1","kind":"reasoning/start","payload":{}}`, `{"kind":"stream/request","payload":{"description":"<b>s"}}`)
	alice.Fence()
	if status, text := call("GET", "/mew", nil); status != 200 || !strings.Contains(text, "/mew/space/lab") || !strings.Contains(text, "1 pending") {
		t.Errorf("list: %d\n%s", status, text)
	}
	status, text := call("GET", "/mew/space/lab", nil)
	key := mewtest.Key(t, r.G.Space("lab").View(), "p1")
	for _, want := range []string{`id="approve-` + key + `"`, `id="cancel-r1"`, `id="kick-alice"`, "stream-1"} {
		if status != 200 || !strings.Contains(text, want) {
			t.Errorf("the page (%d) has no %s", status, want)
		}
	}
	if strings.Contains(text, "<script>alert") || strings.Contains(text, "<b>s") || strings.Contains(text, "\u202e") {
		t.Error("text of a participant has an effect on the page")
	}
	post := func(pairs ...string) {
		t.Helper()
		form := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			form.Set(pairs[i], pairs[i+1])
		}
		if status, text := call("POST", "/mew/space/lab", form); status != http.StatusSeeOther {
			t.Errorf("%v: %d\n%s", pairs, status, text)
		}
	}
	post("do", "approve", "id", key)
	if req := alice.Until("mcp/request"); string(mewtest.Get(req, "correlation_id").JSON()) != `["p1"]` {
		t.Errorf("got %s", req.JSON())
	}
	post("do", "cancel", "id", "r1")
	alice.Until("reasoning/cancel")
	post("do", "chat", "text", "hello <all>")
	if e := alice.Until("chat"); mewtest.Text(mewtest.Payload(e, "text")) != "hello <all>" {
		t.Errorf("got %s", e.JSON())
	}
	for kind, do := range map[string]string{"participant/pause": "pause", "participant/resume": "resume", "participant/request-status": "request-status"} {
		post("do", do, "id", "alice")
		alice.Until(kind)
	}
	if strings.Contains(text, `id="down-owner"`) || !strings.Contains(text, `id="down-alice"`) {
		t.Error("the page offers to shut down the owner, or not the others")
	}
	post("do", "grant", "id", "alice", "capabilities", "mcp/request stream/*")
	if e := alice.Until("capability/grant"); string(mewtest.Get(mewtest.Payload(e), "capabilities").JSON()) != `["mcp/request","stream/*"]` {
		t.Errorf("got %s", e.JSON())
	}
	post("do", "revoke", "id", "alice", "capabilities", "mcp/request")
	alice.Until("capability/revoke")
	status, text = call("POST", "/mew/space/lab", url.Values{"do": {"invite"}, "participant": {"dora"}, "capabilities": {"chat"}})
	_, token, _ := strings.Cut(text, "<dt>Token</dt><dd>")
	if status != 200 || !strings.Contains(text, "is invited") || len(token) == 0 {
		t.Errorf("invite: %d\n%s", status, text)
	}
	if status, text := call("POST", "/mew/space/lab", url.Values{"do": {"invite"}, "participant": {"dora"}}); status != http.StatusConflict || strings.Contains(text, "<dt>Token") {
		t.Errorf("a second invitation: %d\n%s", status, text)
	}
	if _, text := call("GET", "/mew/space/lab", nil); strings.Contains(text, "<dt>Token") || !strings.Contains(text, "dora") {
		t.Errorf("after the invitation:\n%s", text)
	}
	bob := r.Open("/ws", "")
	bob.Send(`{"type":"join","token":"bob-token","participantId":"x9"}`)
	bob.Want("system/welcome")
	bob.Send(`{"id":"p7","kind":"mcp/proposal","payload":{"method":"x"}}`)
	bob.Fence()
	if _, text := call("GET", "/mew/space/lab", nil); !strings.Contains(text, `<b><bdi class="line">bob</bdi></b>`) || strings.Contains(text, `<b><bdi class="line">x9`) {
		t.Errorf("a proposal has the id of its sender instead of the name:\n%s", text)
	}
	post("do", "kick", "id", "alice")
	alice.AwaitClose(envelope.CloseKicked)
	for _, bad := range []url.Values{{"do": {"burn"}}, {"do": {"chat"}}, {"do": {"approve"}, "id": {"p9"}}, {"do": {"pause"}}, {"do": {"invite"}}, {"do": {"grant"}, "id": {"alice"}}} {
		if status, _ := call("POST", "/mew/space/lab", bad); status < 400 {
			t.Errorf("%v was done: %d", bad, status)
		}
	}
	if status, _ := call("GET", "/mew/space/nowhere", nil); status != 404 {
		t.Errorf("an unknown space: %d", status)
	}
}

// quietSpace is a space in which nothing happens except what the test does.
type quietSpace struct {
	space
	feeds waiting.Feeds[[]byte]
	open  chan *view.Feed
}

func (s *quietSpace) Watch() *view.Feed {
	f := s.feeds.Watch(view.FeedRoom)
	s.open <- f
	return f
}

// TestPageFollows: envelopes are shown while a page is open, once however many pages are open, and a closed page leaves
// nothing behind.
func TestPageFollows(t *testing.T) {
	s := &quietSpace{open: make(chan *view.Feed, 2)}
	p := &spacePages{hosted: []*ownerSpace{{space: s}}}
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan string, 100), make(chan struct{}, 2)
	for range 2 {
		go func() { p.follow(ctx, func(topic string) { changed <- topic }); ended <- struct{}{} }()
	}
	feeds := []*view.Feed{<-s.open, <-s.open}
	s.feeds.Tell([]byte(`{"id":"c1","kind":"chat","payload":{"text":"` + strings.Repeat("x", 2*maxOnPage) + `"}}`))
	<-changed
	if topic := <-changed; topic != topicSpaces {
		t.Errorf("topic %s", topic)
	}
	cancel()
	<-ended
	<-ended
	if got := p.hosted[0].tail.newest(); len(got) != 1 || got[0].ID != "c1" || len(got[0].Payload) > maxOnPage {
		t.Errorf("passed %+v", got)
	}
	s.feeds.Tell([]byte(`{"id":"c2","kind":"chat","payload":{}}`))
	for _, f := range feeds {
		if len(f.C()) > 0 {
			t.Error("a feed is left open")
		}
	}
}
