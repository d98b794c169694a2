//go:build slow

package phone_test

import (
	"cmp"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/webauthn"
	"github.com/chromedp/chromedp"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/phone"
	"github.com/agentmesh/agentmesh/node/owner/web"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// world is a node whose page answers at a public address. Browsers take http://localhost for secure.
type world struct {
	t     *testing.T
	mesh  *meshtest.Mesh
	sarah *meshtest.Member
	gate  *phone.Gate
	url   string
}

// newWorld starts a node. known has the passkeys; nil: those of the node.
func newWorld(t *testing.T, known store.Records) *world {
	t.Helper()
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", func(c *node.Config) { c.Policy.Mode = acl.Approval })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, mesh: mesh, sarah: sarah, url: "http://localhost:" + l.Addr().String()[strings.LastIndex(l.Addr().String(), ":")+1:]}
	edge := httpapi.NewOwner(httpapi.OwnerConfig{Dir: t.TempDir()})
	owner.Mount(edge.Group(), sarah.OwnerAPI().Operations()...)
	web.Mount(edge.Pages(), sarah.OwnerAPI(), nil, nil)
	public := echo.New()
	public.IPExtractor = echo.ExtractIPDirect()
	if w.gate, err = phone.Mount(edge, public, phone.Config{Records: cmp.Or(known, sarah.Store.Records()), URL: w.url, Name: func() string { return "sarah" }}); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: public, ReadHeaderTimeout: time.Minute}
	go server.Serve(l) //nolint:errcheck // ends with the test
	t.Cleanup(func() { server.Close() })
	return w
}

// phone returns a tab with a passkey in the phone, which verifies its user.
func (w *world) phone(t *testing.T, tb *browsertest.Tab) webauthn.AuthenticatorID {
	t.Helper()
	tb.Size(390, 844)
	browsertest.Call(tb, webauthn.Enable, webauthn.EnableParams{})
	return browsertest.Call(tb, webauthn.AddVirtualAuthenticator, webauthn.AddVirtualAuthenticatorParams{Options: &webauthn.VirtualAuthenticatorOptions{
		Protocol: webauthn.AuthenticatorProtocolCtap2, Transport: webauthn.AuthenticatorTransportInternal,
		HasResidentKey: true, HasUserVerification: true, IsUserVerified: true, AutomaticPresenceSimulation: true,
	}}).AuthenticatorID
}

// setUp sets up the phone of a tab.
func (w *world) setUp(tb *browsertest.Tab) phone.Setup {
	w.t.Helper()
	setup, err := w.gate.NewSetup(w.t.Context(), time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	tb.Do(chromedp.Navigate(setup.URL))
	tb.Shows("Set up this phone")
	tb.Click("#passkey-use")
	tb.Shows("Today")
	return setup
}

// send sends a request as a program does, and returns the status and the body. It follows no redirect.
func (w *world) send(method, path, contentType, body string, header ...string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Location") + string(text)
}

func (w *world) stranger(name, text string) {
	w.t.Helper()
	s := w.mesh.Stranger(name)
	raw := s.Sign(s.Draft(w.sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"`+text+`"}}`))
	if a := meshtest.Post(w.t, w.sarah.URL, raw); a.Status != http.StatusAccepted {
		w.t.Fatalf("%d %s", a.Status, a.Body)
	}
}

func (w *world) pending() []owner.Approval {
	w.t.Helper()
	asks, err := w.sarah.OwnerAPI().ListApprovals(w.t.Context(), owner.Query{State: string(acl.AskPending), Limit: 10})
	if err != nil {
		w.t.Fatal(err)
	}
	return asks.Items
}

// cookies returns the cookies of a tab as a header.
func cookies(tb *browsertest.Tab, address string) string {
	var list []string
	for _, c := range browsertest.Call(tb, network.GetCookies, network.GetCookiesParams{URLs: []string{address}}).Cookies {
		list = append(list, c.Name+"="+c.Value)
	}
	return strings.Join(list, "; ")
}

// TestPhone is the page at the public address, with a phone and with attackers (THREATS 50).
func TestPhone(t *testing.T) {
	w := newWorld(t, nil)
	w.stranger("chris", "Are you free on Friday?")
	ask := w.pending()[0]
	form := url.Values{"choice": {string(acl.Approve)}, "hash": {ask.Hash}}.Encode()
	decide := "/owner/page/approvals/" + ask.ID
	const formType = "application/x-www-form-urlencoded"

	// Without a passkey, nothing of the page and nothing of the API answers.
	for _, tc := range []struct {
		method, path string
		want         int
		header       []string
	}{
		{"GET", "/owner/page/", 303, nil},
		{"GET", "/owner/page", 303, nil},
		{"GET", "/owner/page/approvals", 303, nil},
		{"GET", "/owner/page/events", 401, nil},
		{"GET", "/owner/page/login", 303, nil},
		{"POST", "/owner/page/login", 401, nil},
		{"POST", decide, 401, nil},
		{"GET", "/owner/page/approvals", 303, []string{"Authorization", "Bearer " + strings.Repeat("x", 32)}},
		{"GET", "/owner/page/%2e%2e/status", 303, nil},
		{"GET", "/owner/page/phonex", 303, nil},
		{"GET", "/owner/status", 404, nil},
		{"GET", "/metrics", 404, nil},
		{"GET", "/owner/page/", 303, []string{"Cookie", "__Host-agentmesh-phone=guess"}},
		{"GET", "/owner/page/phone", 200, nil},
		{"POST", "/owner/page/phone/begin", 403, []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}},
	} {
		status, text := w.send(tc.method, tc.path, formType, form, tc.header...)
		if status != tc.want || status == 303 && !strings.HasPrefix(text, "/owner/page/phone") || strings.Contains(text, "Friday") || strings.Contains(text, "sarah") {
			t.Errorf("%s %s: %d %.200s, want %d", tc.method, tc.path, status, text, tc.want)
		}
	}

	browser := browsertest.Start(t)
	tb := browsertest.NewTab(t, browser)
	device := w.phone(t, tb)
	setup := w.setUp(tb)
	if strings.Contains(browsertest.Eval[string](tb, `location.href`), "#") {
		t.Error("the address still has the code")
	}
	tb.Shows("Are you free on Friday?")
	if to := os.Getenv("PICTURES"); to != "" && to != "docs" {
		tb.Picture(filepath.Join(to, "phone.png"))
	}

	// A session alone decides nothing.
	session := cookies(tb, w.url)
	if status, text := w.send("POST", decide, formType, form, "Cookie", session); status != http.StatusForbidden || !strings.Contains(text, "passkey") {
		t.Errorf("a form that was not confirmed: %d %s", status, text)
	}
	browsertest.Call(tb, webauthn.SetUserVerified, webauthn.SetUserVerifiedParams{AuthenticatorID: device})
	tb.Click(`button[value="approve"]`)
	tb.Until(`document.getElementById("stream").textContent !== "Live" && document.getElementById("stream").textContent !== ""`)
	if n := len(w.pending()); n != 1 {
		t.Fatalf("without user verification %d wait", n)
	}
	browsertest.Call(tb, webauthn.SetUserVerified, webauthn.SetUserVerifiedParams{AuthenticatorID: device, IsUserVerified: true})
	tb.Click(`button[value="approve"]`)
	tb.Shows("Let in.")
	if n := len(w.pending()); n != 0 {
		t.Errorf("%d wait after the decision", n)
	}

	// A confirmation is for one form, and an answer of the phone for one use.
	answer := answerOf(tb, "")
	finish := func(body, cookie string) int {
		status, _ := w.send("POST", "/owner/page/phone/finish", "application/json", body, "Cookie", cookie)
		return status
	}
	if status := finish(answer, session); status != http.StatusNoContent {
		t.Errorf("the answer of the phone: %d", status)
	}
	if status := finish(answer, session); status != http.StatusForbidden {
		t.Errorf("the same answer again: %d", status)
	}
	if status := finish(answer, ""); status != http.StatusForbidden {
		t.Errorf("the same answer as a new sign-in: %d", status)
	}
	pause := url.Values{"paused": {"yes"}}.Encode()
	if status, text := w.send("POST", "/owner/page/pause", formType, pause, "Cookie", session); status != http.StatusSeeOther {
		t.Errorf("a confirmed form: %d %s", status, text)
	}
	if status, _ := w.send("POST", "/owner/page/pause", formType, pause, "Cookie", session); status != http.StatusForbidden {
		t.Errorf("a second form: %d", status)
	}

	// What was changed, or was made for another place, is refused.
	again := answerOf(tb, "")
	var parts struct {
		State    string         `json:"state"`
		Response map[string]any `json:"response"`
	}
	if err := json.Unmarshal([]byte(again), &parts); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"another state":     func() { parts.State = "AAAA." + parts.State[strings.Index(parts.State, ".")+1:] },
		"no state":          func() { parts.State = "" },
		"another signature": func() { parts.Response["response"].(map[string]any)["signature"] = "AAAA" },
		"another key":       func() { parts.Response["id"], parts.Response["rawId"] = "AAAA", "AAAA" },
	} {
		if err := json.Unmarshal([]byte(again), &parts); err != nil {
			t.Fatal(err)
		}
		change()
		body, err := json.Marshal(parts)
		if err != nil {
			t.Fatal(err)
		}
		if status := finish(string(body), session); status != http.StatusForbidden {
			t.Errorf("%s: %d", name, status)
		}
	}
	other := newWorld(t, w.sarah.Store.Records()) // another origin, of which all but the origin is right
	elsewhere := browsertest.NewTab(t, browser)
	other.phone(t, elsewhere)
	other.setUp(elsewhere)
	challenge, state := w.begin()
	foreign := answerOf(elsewhere, challenge)
	if err := json.Unmarshal([]byte(foreign), &parts); err != nil {
		t.Fatal(err)
	}
	parts.State = state
	relayed, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	if status := finish(string(relayed), ""); status != http.StatusForbidden {
		t.Errorf("an answer from another page: %d", status)
	}

	// A code sets up one phone, and cannot be guessed.
	code := setup.URL[strings.Index(setup.URL, "#")+1:]
	for i := range 12 {
		guess := code // it was used
		if i > 0 {
			guess = strings.Repeat("A", 26)
		}
		want := http.StatusForbidden
		if i >= 4 { // five faults came before
			want = 0
		}
		if status, _ := w.send("POST", "/owner/page/phone/begin", "application/json", `{"code":"`+guess+`"}`); want != 0 && status != want && status != http.StatusTooManyRequests {
			t.Errorf("guess %d: %d", i, status)
		}
	}
	if status, _ := w.send("POST", "/owner/page/phone/begin", "application/json", `{}`); status != http.StatusTooManyRequests {
		t.Errorf("after many guesses: %d", status)
	}

	// Only the machine forgets phones, and a forgotten one is out at once.
	if err := w.gate.Forget(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if status, text := w.send("GET", "/owner/page/approvals", formType, "", "Cookie", session); status != http.StatusSeeOther || !strings.HasPrefix(text, "/owner/page/phone") {
		t.Errorf("a forgotten phone: %d %s", status, text)
	}
	tb.Forgive("403")
	tb.Forgive("NotAllowedError")
}

// answerOf returns the body of an answer of the phone, to a ceremony of its own or to a challenge.
func answerOf(tb *browsertest.Tab, challenge string) string {
	browsertest.Eval[int](tb, `(window.answer = "", (async () => {
		const begun = await (await fetch("/owner/page/phone/begin", { method: "POST", body: "{}" })).json();
		if ("`+challenge+`") begun.options.publicKey.challenge = "`+challenge+`";
		const made = await navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(begun.options.publicKey) });
		window.answer = JSON.stringify({ state: begun.state, response: made.toJSON() });
	})(), 0)`)
	tb.Until(`window.answer !== ""`)
	return browsertest.Eval[string](tb, `window.answer`)
}

// begin begins a sign-in and returns its challenge and its state.
func (w *world) begin() (challenge, state string) {
	w.t.Helper()
	_, text := w.send("POST", "/owner/page/phone/begin", "application/json", `{}`)
	var begun struct {
		State   string `json:"state"`
		Options struct {
			PublicKey struct {
				Challenge string `json:"challenge"`
			} `json:"publicKey"`
		} `json:"options"`
	}
	if err := json.Unmarshal([]byte(text), &begun); err != nil || begun.Options.PublicKey.Challenge == "" {
		w.t.Fatalf("%v: %s", err, text)
	}
	return begun.Options.PublicKey.Challenge, begun.State
}
