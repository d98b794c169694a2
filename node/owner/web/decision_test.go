package web_test

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const linkHost = "phone.example"

// linkTo returns the path and the token of a new link to a question.
func (p *ownerPage) linkTo(ask acl.Ask, at time.Time) (path, token string) {
	p.t.Helper()
	text, err := p.links.Link(p.t.Context(), ask.ID, at)
	if err != nil || !strings.HasPrefix(text, "https://"+linkHost+httpapi.LinkPath+"/") {
		p.t.Fatalf("link = %q, %v", text, err)
	}
	u, err := url.Parse(text)
	if err != nil {
		p.t.Fatal(err)
	}
	return u.Path, u.Query().Get("once")
}

// localLink returns the URL of a new link without the proxy.
func (p *ownerPage) localLink(ask acl.Ask) string {
	path, token := p.linkTo(ask, time.Now())
	return "http://" + p.addr + path + "?once=" + token
}

// byPhone makes a request as a browser that knows only a link. from is the client that the proxy names.
func (p *ownerPage) byPhone(method, path, from string, form url.Values) (*http.Response, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, "http://"+p.addr+path, strings.NewReader(form.Encode()))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Host = linkHost
	req.Header.Set("X-Forwarded-For", from)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := p.http.Transport.RoundTrip(req)
	_, body := p.answer(resp, err)
	return resp, body
}

func (p *ownerPage) open(path, token string) (int, string) {
	p.t.Helper()
	resp, body := p.byPhone(http.MethodGet, path+"?once="+url.QueryEscape(token), "192.0.2.1", nil)
	return resp.StatusCode, body
}

func (p *ownerPage) choose(path, token string, choice acl.Choice) (int, string) {
	p.t.Helper()
	resp, body := p.byPhone(http.MethodPost, path, "192.0.2.1", url.Values{"once": {token}, "choice": {string(choice)}})
	return resp.StatusCode, body
}

// TestLinkDecides: a link shows the question, a form decides it, and the link is used up.
func TestLinkDecides(t *testing.T) {
	_, sarah, p, chris, raw := newHeldPage(t)
	ask := onlyAsk(t, sarah)
	path, token := p.linkTo(ask, time.Now())
	rec, err := sarah.Store.Records().Get(t.Context(), "decision-links", ask.ID, time.Now())
	if err != nil || bytes.Contains(rec.Body, []byte(token)) || len(token) < 26 {
		t.Errorf("the store has %s, %v", rec.Body, err)
	}
	if again, same := p.linkTo(ask, time.Now()); again != path || same != token {
		t.Error("a notice that is sent again has another link")
	}
	resp, body := p.byPhone(http.MethodGet, path+"?choice=approve&once="+token, "192.0.2.1", nil)
	for _, want := range []string{"A stranger writes", string(chris.ID), "signature checked", "hello", "Let them in", "Only this message", "Reject"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	for _, lasting := range []string{"conversation", "Block<", "<script", httpapi.PagePath} {
		if strings.Contains(body, lasting) {
			t.Errorf("the page has %q:\n%s", lasting, body)
		}
	}
	for name, want := range map[string]string{
		"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if style, _ := p.byPhone(http.MethodGet, styleSheet(t, body), "192.0.2.1", nil); style.StatusCode != http.StatusOK {
		t.Errorf("style sheet: %d", style.StatusCode)
	}
	p.byPhone(http.MethodHead, path+"?once="+token, "192.0.2.1", nil)
	p.byPhone(http.MethodOptions, path+"?once="+token, "192.0.2.1", nil)
	if len(pendingAsks(t, sarah)) != 1 {
		t.Fatal("opening the link decided the question")
	}
	for _, choice := range []acl.Choice{acl.ApproveConversation, acl.ApproveAlways, acl.Block, ""} {
		if status, body := p.choose(path, token, choice); status != http.StatusBadRequest || !goldentest.Page(t, "choose "+string(choice), body) {
			t.Errorf("choice %q: %d\n%s", choice, status, body)
		}
	}
	if status, body := p.choose(path, token, acl.Approve); status != http.StatusOK || !goldentest.Page(t, "approve", body) {
		t.Fatalf("approve: %d\n%s", status, body)
	}
	if final := meshtest.Post(t, sarah.URL, raw); final.Message(t, sarah).Action() != wire.ActionReceived {
		t.Errorf("the sender's repeat: %s", final.Body)
	}
	if status, body := p.open(path, token); status != http.StatusNotFound || strings.Contains(body, "hello") {
		t.Errorf("a used link: %d\n%s", status, body)
	}
	if status, _ := p.choose(path, token, acl.Reject); status != http.StatusNotFound {
		t.Errorf("a used link decides: %d", status)
	}
	if decided, err := sarah.Asks().Get(t.Context(), ask.ID, time.Now()); err != nil || decided.By != "link" || decided.State != acl.AskApproved {
		t.Errorf("question = %+v, %v", decided, err)
	}
}

// styleSheet returns the path of the style sheet.
func styleSheet(t *testing.T, body string) string {
	t.Helper()
	_, rest, _ := strings.Cut(body, `<link rel="stylesheet" href="`)
	path, _, ok := strings.Cut(rest, `"`)
	if !ok {
		t.Fatalf("there is no style sheet:\n%s", body)
	}
	return path
}

// TestLinkOpensNothingElse: a link and the host of links lead to no other page and to no operation.
func TestLinkOpensNothingElse(t *testing.T) {
	_, sarah, p, _, _ := newHeldPage(t)
	_, token := p.linkTo(onlyAsk(t, sarah), time.Now())
	for _, path := range []string{
		httpapi.PagePath + "/", httpapi.PagePath + "/login", "/owner/approvals", "/owner/status", "/metrics",
		httpapi.LinkPath, httpapi.LinkPath + "/../page/login", httpapi.LinkPath + "/%2e%2e/page/login",
	} {
		resp, body := p.byPhone(http.MethodGet, path+"?once="+token, "192.0.2.1", nil)
		if resp.StatusCode < 400 || strings.Contains(body, "Sign in") {
			t.Errorf("%s: %d\n%s", path, resp.StatusCode, body)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url("approvals")+"?once="+token, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.http.Transport.RoundTrip(req)
	if p.answer(resp, err); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("the token on another page: %d", resp.StatusCode)
	}
}

// TestLinkOfAnotherSite: a form on another site cannot use a link.
func TestLinkOfAnotherSite(t *testing.T) {
	_, sarah, p, _, _ := newHeldPage(t)
	path, token := p.linkTo(onlyAsk(t, sarah), time.Now())
	form := url.Values{"once": {token}, "choice": {"approve"}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.addr+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = linkHost
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := p.http.Transport.RoundTrip(req)
	if p.answer(resp, err); resp.StatusCode != http.StatusForbidden || len(pendingAsks(t, sarah)) != 1 {
		t.Errorf("another site: %d", resp.StatusCode)
	}
}

// TestLinkCoversWhatTheNoticeWasAbout: a message that came after the notice is not shown and not approved.
func TestLinkCoversWhatTheNoticeWasAbout(t *testing.T) {
	_, sarah, p, chris, _ := newHeldPage(t)
	path, token := p.linkTo(onlyAsk(t, sarah), time.Now())
	second := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"and a second one"}}`))
	must(t, meshtest.Post(t, sarah.URL, second), http.StatusAccepted)
	if status, body := p.open(path, token); status != http.StatusOK || strings.Contains(body, "second one") || !strings.Contains(body, "hello") {
		t.Errorf("open: %d\n%s", status, body)
	}
	if status, body := p.choose(path, token, acl.Approve); status != http.StatusOK {
		t.Fatalf("approve: %d\n%s", status, body)
	}
	left := onlyAsk(t, sarah)
	path, token = p.linkTo(left, time.Now())
	if _, body := p.open(path, token); !strings.Contains(body, "second one") {
		t.Errorf("the second message does not wait:\n%s", body)
	}
}

// TestLinkShowsWhatWaitsBehind: a link that was made when two messages waited decides both.
func TestLinkShowsWhatWaitsBehind(t *testing.T) {
	_, sarah, p, chris, _ := newHeldPage(t)
	second := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"and a second one"}}`))
	must(t, meshtest.Post(t, sarah.URL, second), http.StatusAccepted)
	path, token := p.linkTo(onlyAsk(t, sarah), time.Now())
	if _, body := p.open(path, token); !strings.Contains(body, "second one") || !strings.Contains(body, "hello") {
		t.Errorf("open:\n%s", body)
	}
	if status, body := p.choose(path, token, acl.Approve); status != http.StatusOK || len(pendingAsks(t, sarah)) != 0 {
		t.Errorf("approve: %d, %d wait\n%s", status, len(pendingAsks(t, sarah)), body)
	}
}

// TestLinkToAnotherQuestion: a link does not decide another question that has the same id.
func TestLinkToAnotherQuestion(t *testing.T) {
	_, sarah, p, _, _ := newHeldPage(t)
	ask := onlyAsk(t, sarah)
	path, token := p.linkTo(ask, time.Now())
	recs := sarah.Store.Records()
	rec, err := recs.Get(t.Context(), acl.AskNamespace, ask.ID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rec.Body = bytes.ReplaceAll(rec.Body, []byte(ask.Hash), []byte(strings.Repeat("ab", 32)))
	if err := recs.Apply(context.Background(), []store.Change{{Record: rec, IfRev: rec.Rev}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if status, body := p.open(path, token); status != http.StatusConflict || strings.Contains(body, "hello") {
		t.Errorf("open: %d\n%s", status, body)
	}
	if status, body := p.choose(path, token, acl.Approve); status != http.StatusConflict || !goldentest.Page(t, "approve", body) {
		t.Errorf("approve: %d\n%s", status, body)
	}
	if onlyAsk(t, sarah).State != acl.AskPending {
		t.Error("another question was decided")
	}
}

// TestLinkExpires: an old link shows nothing and decides nothing.
func TestLinkExpires(t *testing.T) {
	_, sarah, p, _, _ := newHeldPage(t)
	path, token := p.linkTo(onlyAsk(t, sarah), time.Now().Add(-3*24*time.Hour-time.Second))
	if status, body := p.open(path, token); status != http.StatusNotFound || strings.Contains(body, "hello") {
		t.Errorf("open: %d\n%s", status, body)
	}
	if status, _ := p.choose(path, token, acl.Approve); status != http.StatusNotFound || len(pendingAsks(t, sarah)) != 1 {
		t.Errorf("approve: %d", status)
	}
}

// TestLinkAfterADecision: a link to a question that was decided elsewhere says so, without its content.
func TestLinkAfterADecision(t *testing.T) {
	_, sarah, p, _, _ := newHeldPage(t)
	ask := onlyAsk(t, sarah)
	path, token := p.linkTo(ask, time.Now())
	decide(t, sarah, ask, acl.Reject)
	if status, body := p.open(path, token); status != http.StatusGone || !strings.Contains(body, "rejected by test") || strings.Contains(body, "hello") {
		t.Errorf("open: %d\n%s", status, body)
	}
	if status, _ := p.choose(path, token, acl.Approve); status != http.StatusGone {
		t.Errorf("approve: %d", status)
	}
	if text, err := p.links.Link(t.Context(), ask.ID, time.Now()); text != "" || err != nil {
		t.Errorf("a new link = %q, %v", text, err)
	}
}

// TestWrongLinks: after ten wrong links, an address must wait. Other addresses need not.
func TestWrongLinks(t *testing.T) {
	_, sarah, p, _, _ := newHeldPage(t)
	ask := onlyAsk(t, sarah)
	path, token := p.linkTo(ask, time.Now())
	for i := range 10 {
		wrong := path
		if i%2 == 1 {
			wrong = httpapi.LinkPath + "/ask_none"
		}
		resp, body := p.byPhone(http.MethodPost, wrong, "198.51.100.1, 203.0.113.9", url.Values{"once": {strings.Repeat("A", 32)}, "choice": {"approve"}})
		if resp.StatusCode != http.StatusNotFound || strings.Contains(body, "hello") {
			t.Fatalf("wrong link %d: %d\n%s", i, resp.StatusCode, body)
		}
	}
	resp, body := p.byPhone(http.MethodGet, path+"?once="+token, "192.0.2.1, 203.0.113.9", nil)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || strings.Contains(body, "hello") {
		t.Errorf("after ten wrong ones: %d\n%s", resp.StatusCode, body)
	}
	if status, _ := p.open(path, token); status != http.StatusOK {
		t.Errorf("another address: %d", status)
	}
	if status, _ := p.open(path, ""); status != http.StatusNotFound {
		t.Errorf("without a token: %d", status)
	}
}

// TestLinkShowsHostileText: text of a stranger is inert on the page of a link.
func TestLinkShowsHostileText(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, chris := mesh.Node("sarah", mode(acl.Approval)), mesh.Stranger("chris")
	payload := `{"action":"deliver","message":{"body":"<b onclick=x>pay\u202e now</b>"}}`
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, payload))), http.StatusAccepted)
	p := servePage(t, sarah)
	path, token := p.linkTo(onlyAsk(t, sarah), time.Now())
	_, body := p.open(path, token)
	if strings.Contains(body, "<b onclick") || !strings.Contains(body, "U+202E") || !strings.Contains(body, "&lt;b onclick") {
		t.Errorf("page:\n%s", body)
	}
}

// TestNoLinkToALastingQuestion: the owner must decide on the page if an approval applies to later messages.
func TestNoLinkToALastingQuestion(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", nil)
	p := servePage(t, sarah)
	noLink := func(id string) {
		t.Helper()
		if text, err := p.links.Link(t.Context(), id, time.Now()); text != "" || err != nil {
			t.Errorf("link to %s = %q, %v", id, text, err)
		}
	}
	noLink("ask_none")
	for _, ask := range []acl.Ask{
		{Kind: owner.AskKeyChange}, {Kind: owner.AskMessage, Rule: owner.RuleUnproven}, {Kind: owner.AskOutgoing, Rule: owner.RuleUnproven},
		{Kind: "moltspeak-consent", Lasting: true},
	} {
		ask.Subject, ask.Title, ask.Body, ask.Hash, ask.Created = "am_x", "a question", []byte("{}"), acl.HashBody([]byte("{}")), time.Now()
		ask, changes := sarah.Asks().Open(ask, acl.Slot{})
		if err := sarah.Store.Records().Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
		noLink(ask.ID)
	}
}

// TestLinkToABridgesQuestion: a question of a bridge has its own title and shows its body.
func TestLinkToABridgesQuestion(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", nil)
	p := servePage(t, sarah)
	body := []byte(`{"ref":"2026-11-22-001","action":"open the door"}`)
	ask, changes := sarah.Asks().Open(acl.Ask{
		Kind: "mess-confirm", Subject: "roomba", Title: "an executor wants to act", Body: body, Hash: acl.HashBody(body), Created: time.Now(),
	}, acl.Slot{})
	if err := sarah.Store.Records().Apply(t.Context(), changes, time.Now()); err != nil {
		t.Fatal(err)
	}
	path, token := p.linkTo(ask, time.Now())
	status, page := p.open(path, token)
	if status != http.StatusOK || strings.Contains(page, "Exactly what") || strings.Contains(page, "mess-confirm") {
		t.Errorf("open: %d\n%s", status, page)
	}
	for _, want := range []string{"<h1>An executor wants to act</h1>", "2026-11-22-001", "open the door", `value="reject"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// TestHeldAnswerIsNotSent: no page claims that an answer to a task, which waits for the owner, was sent.
func TestHeldAnswerIsNotSent(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", nil)
	p := servePage(t, sarah)
	body := []byte(`{"payload":{"text":"done"}}`)
	ask, changes := sarah.Asks().Open(acl.Ask{
		Kind: owner.AskTask, Subject: "am_x", Title: "answer to a task", Body: body, Hash: acl.HashBody(body), Created: time.Now(),
	}, acl.Slot{})
	if err := sarah.Store.Records().Apply(t.Context(), changes, time.Now()); err != nil {
		t.Fatal(err)
	}
	_, phone := p.open(p.linkTo(ask, time.Now()))
	for _, page := range []string{phone, p.must("approvals/" + ask.ID)} {
		if !strings.Contains(page, "Exactly what would be sent") || strings.Contains(page, "Exactly what was sent") {
			t.Errorf("the page:\n%s", page)
		}
	}
}
