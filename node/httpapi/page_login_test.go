package httpapi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

func TestSignIn(t *testing.T) {
	dir := shortTempDir(t)
	o, token, log := startPages(t, dir)
	b := newBrowser(t, o)
	resp, _ := b.get(PagePath + "/thing?x=1")
	if got := resp.Header.Get("Location"); resp.StatusCode != 303 || got != loginPath+"?next="+url.QueryEscape(PagePath+"/thing?x=1") {
		t.Fatalf("without a session: %d %s", resp.StatusCode, got)
	}
	resp, _ = b.get(PagePath+"/thing", "HX-Request", "true")
	if resp.StatusCode != 401 || resp.Header.Get("HX-Redirect") == "" {
		t.Errorf("the live part without a session: %d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := b.do(http.MethodPost, PagePath+"/thing", url.Values{}); resp.StatusCode != 401 {
		t.Errorf("a form without a session: %d", resp.StatusCode)
	}
	if resp, body := b.do(http.MethodPost, loginPath, url.Values{"secret": {"wrong"}}); resp.StatusCode != 403 || !goldentest.Page(t, "a wrong secret", body) {
		t.Errorf("wrong secret: %d", resp.StatusCode)
	}
	resp, _ = b.do(http.MethodPost, loginPath, url.Values{"secret": {token}, "next": {PagePath + "/thing"}})
	if resp.StatusCode != 303 || resp.Header.Get("Location") != PagePath+"/thing" {
		t.Fatalf("sign-in: %d %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	cookie := resp.Header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=" + PagePath} {
		if !strings.Contains(cookie, want) {
			t.Errorf("cookie %q lacks %s", cookie, want)
		}
	}
	if resp, _ := b.get(PagePath + "/thing"); resp.StatusCode != 200 {
		t.Errorf("signed in: %d", resp.StatusCode)
	}
	if resp, _ := b.get("/owner/thing"); resp.StatusCode != 401 {
		t.Errorf("the session opens the API: %d", resp.StatusCode)
	}
	if resp, _ := b.do(http.MethodPost, PagePath+"/logout", url.Values{}); resp.StatusCode != 303 {
		t.Errorf("sign-out: %d", resp.StatusCode)
	}
	if resp, _ := b.get(PagePath + "/thing"); resp.StatusCode != 303 {
		t.Errorf("signed out: %d", resp.StatusCode)
	}
	data, err := os.ReadFile(filepath.Join(dir, SessionsFile))
	if err != nil {
		t.Fatal(err)
	}
	value, _, _ := strings.Cut(strings.SplitN(cookie, "=", 2)[1], ";")
	for _, where := range []string{log.String(), string(data)} {
		if strings.Contains(where, token) || strings.Contains(where, value) {
			t.Errorf("a secret is in\n%s", where)
		}
	}
}

func TestSignInCode(t *testing.T) {
	dir := shortTempDir(t)
	o, _, _ := startPages(t, dir)
	s := o.pages.sessions
	now := time.Now()
	code, until := s.newCode(now)
	if life := until.Sub(now); life != codeLife {
		t.Errorf("a code lives %v", life)
	}
	b := newBrowser(t, o)
	if status := b.signIn(strings.ToLower(strings.Replace(code, "-", " ", 1))); status != 303 {
		t.Errorf("sign-in with a code: %d", status)
	}
	if status := b.signIn(code); status != 403 {
		t.Errorf("a code works twice: %d", status)
	}
	code, _ = s.newCode(now)
	if s.redeem(code, now.Add(codeLife)) {
		t.Error("a code works after its end")
	}
	code, _ = s.newCode(now)
	for range 10_000 { // another user of the machine must not keep the owner out
		s.redeem("AAAAA-AAAAA", now)
	}
	if !s.redeem(code, now) || s.redeem(code, now) {
		t.Error("after ten thousand wrong guesses a code does not work, or works twice")
	}
	old, _ := s.newCode(now)
	s.newCode(now)
	if s.redeem(old, now) {
		t.Error("a code works after the next one")
	}
}

func TestSessionsSurviveARestart(t *testing.T) {
	dir := shortTempDir(t)
	o := NewOwner(OwnerConfig{Dir: dir, Listen: "127.0.0.1:0"})
	addTestPages(o)
	stop := serveOwner(t, o)
	token, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, o)
	b.signIn(strings.TrimSpace(string(token)))
	stop()
	again, _, _ := startPages(t, dir)
	b.base = "http://" + again.Addr().String()
	if resp, _ := b.get(PagePath + "/thing"); resp.StatusCode != 200 {
		t.Errorf("after a restart: %d", resp.StatusCode)
	}
	if err := again.pages.sessions.load(sha256.Sum256([]byte("another token"))); err != nil {
		t.Fatal(err)
	}
	if n := len(again.pages.sessions.list); n != 0 {
		t.Errorf("%d sessions survive another token", n)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	s := newSessions(t.TempDir())
	now := time.Now()
	var first string
	for i := range 3 * maxSessions {
		value, _, err := s.begin(now)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = value
		}
	}
	if len(s.list) != maxSessions {
		t.Errorf("%d sessions, want %d", len(s.list), maxSessions)
	}
	r := &http.Request{Header: http.Header{"Cookie": {s.cookieName() + "=" + first}}}
	if _, ok := s.find(r); ok {
		t.Error("the oldest session is still good")
	}
	value, _, err := s.begin(now.Add(-sessionLife))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", s.cookieName()+"="+value)
	if _, ok := s.find(r); ok {
		t.Error("a session is good after its end")
	}
}

func TestNextStaysHere(t *testing.T) {
	for in, want := range map[string]string{
		PagePath + "/inbox?state=new":       PagePath + "/inbox?state=new",
		"https://evil.example/owner/page/x": PagePath + "/", "//evil.example/owner/page/": PagePath + "/", "": PagePath + "/",
		"/elsewhere": PagePath + "/", PagePath + "/\\evil": PagePath + "/", "/owner/page//evil.example": PagePath + "/", "javascript:alert(1)": PagePath + "/",
	} {
		if got := cleanNext(in); got != want {
			t.Errorf("cleanNext(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPageRefusesOthers(t *testing.T) { // THREATS 23
	o, token, log := startPages(t, shortTempDir(t))
	b := newBrowser(t, o)
	b.signIn(token)
	for _, tc := range []struct {
		name, method, path string
		header             []string
		status             int
	}{
		{"foreign host", "GET", PagePath + "/thing", []string{"Host", "evil.example"}, 400},
		{"foreign host, sign-in", "GET", loginPath, []string{"Host", "evil.example"}, 400},
		{"cross-site form", "POST", PagePath + "/thing", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"same site, other port", "POST", PagePath + "/thing", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"foreign origin", "POST", PagePath + "/thing", []string{"Origin", "http://evil.example"}, 403},
		{"cross-site sign-in", "POST", loginPath, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"token in the URL", "GET", PagePath + "/thing?token=" + token, nil, 400},
		{"token in the URL of the API", "GET", "/owner/thing?access_token=" + token, nil, 400},
		{"another form of the path", "GET", "/owner%2Fpage/thing", nil, 401},
		{"wrong bearer", "GET", PagePath + "/thing", []string{"Authorization", "Bearer nothing"}, 401},
		{"the same origin", "POST", PagePath + "/thing", []string{"Sec-Fetch-Site", "same-origin"}, 303},
		{"the bearer", "GET", PagePath + "/thing", []string{"Authorization", "Bearer " + token}, 200},
	} {
		var form url.Values
		if tc.method == "POST" {
			form = url.Values{"secret": {token}}
		}
		resp, body := b.do(tc.method, tc.path, form, tc.header...)
		if resp.StatusCode != tc.status {
			t.Errorf("%s: %d, want %d", tc.name, resp.StatusCode, tc.status)
		}
		if strings.Contains(body, token) {
			t.Errorf("%s: the answer has the token", tc.name)
		}
	}
	signedOut := newBrowser(t, o)
	if resp, _ := signedOut.get(PagePath + "/events"); resp.StatusCode != 401 {
		t.Errorf("events without a session: %d", resp.StatusCode)
	}
	if strings.Contains(log.String(), token) {
		t.Error("the token is in the log")
	}
}

func TestOpen(t *testing.T) {
	dir := shortTempDir(t)
	o := NewOwner(OwnerConfig{Dir: dir})
	addTestPages(o)
	if _, err := o.Open(); !errors.Is(err, errNotServing) {
		t.Errorf("Open before Listen = %v", err)
	}
	serveOwner(t, o)
	if o.Addr() != nil {
		t.Fatal("it listens on TCP unasked")
	}
	addr, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	if !LoopbackHost(addr.String()) {
		t.Errorf("it listens on %s", addr)
	}
	if again, err := o.Open(); err != nil || again.String() != addr.String() {
		t.Errorf("Open again = %v, %v", again, err)
	}
	if resp, body := newBrowser(t, o).get(loginPath); resp.StatusCode != 200 || !strings.Contains(body, "agentmesh page") {
		t.Errorf("the sign-in form: %d", resp.StatusCode)
	}
}

func TestSignInOverTheSocket(t *testing.T) {
	dir := shortTempDir(t)
	o, _, _ := startPages(t, dir)
	b := newBrowser(t, o)
	if resp, _ := b.do(http.MethodPost, "/owner/sign-in", nil); resp.StatusCode != 401 {
		t.Errorf("a code without the token: %d", resp.StatusCode)
	}
	rec := do(o.Handler(), http.MethodPost, "/owner/sign-in", "")
	var in SignIn
	if err := json.Unmarshal(rec.Body.Bytes(), &in); err != nil {
		t.Fatalf("%s: %v", rec.Body, err)
	}
	if in.URL != b.base+PagePath+"/" || time.Until(in.Expires) > codeLife || b.signIn(in.Code) != 303 {
		t.Errorf("sign-in over the socket: %+v", in)
	}
}
