package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// addTestPages adds a page that shows text of strangers, a form, and pages that fail.
func addTestPages(o *Owner) {
	p := o.Pages()
	page := p.Template(fstest.MapFS{"p.html": {Data: []byte(`{{define "live"}}{{text .Data}}{{line .Data}}{{id .Data}}{{end}}`)}}, nil, "p.html")
	p.SetBar(func(context.Context) Bar { return Bar{Name: `<b>"Sarah"</b>`, Paused: true} })
	p.Add(Nav{Path: "", Title: "Start"}, Nav{Path: "thing", Title: "Thing", Count: func(context.Context) int { return 3 }})
	show := func(c echo.Context) error {
		return p.Render(c, page, View{Title: "Thing", Topics: []string{"things"}, Data: "<i>hello</i>"})
	}
	p.Group().GET("/", show)
	p.Group().GET("/thing", show)
	p.Group().POST("/thing", func(c echo.Context) error {
		if _, err := Form(c, 1<<10); err != nil {
			return err
		}
		return Done(c, "thing", "did-it")
	})
	p.Group().GET("/broken", func(echo.Context) error { return errors.New("secret cause") })
	p.Group().GET("/refused", func(echo.Context) error { return wire.ErrQuery.At("<b>") })
}

// browser is a client that keeps cookies and follows no redirects.
type browser struct {
	t    *testing.T
	http *http.Client
	base string
}

func newBrowser(t *testing.T, o *Owner) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &browser{t, &http.Client{
		Jar: jar, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, "http://" + o.Addr().String()}
}

func (b *browser) do(method, path string, form url.Values, header ...string) (*http.Response, string) {
	b.t.Helper()
	var in io.Reader
	if form != nil {
		in = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, in)
	if err != nil {
		b.t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp, string(body)
}

func (b *browser) get(path string, header ...string) (*http.Response, string) {
	b.t.Helper()
	return b.do(http.MethodGet, path, nil, header...)
}

// signIn submits the sign-in form and returns the status.
func (b *browser) signIn(secret string) int {
	b.t.Helper()
	resp, _ := b.do(http.MethodPost, loginPath, url.Values{"secret": {secret}})
	return resp.StatusCode
}

// startPages serves the test pages over TCP and returns the listener with its token and its log.
func startPages(t *testing.T, dir string) (*Owner, string, *safeBuffer) {
	t.Helper()
	logger, log := newTestLog()
	o := NewOwner(OwnerConfig{Dir: dir, Listen: "127.0.0.1:0", Logger: logger})
	addTestPages(o)
	serveOwner(t, o)
	token, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	return o, strings.TrimSpace(string(token)), log
}

// serveOwner serves until the test ends or stop is called.
func serveOwner(t *testing.T, o *Owner) (stop func()) {
	t.Helper()
	if err := o.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- o.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// inline matches inline scripts and styles, which the policy blocks.
var inline = regexp.MustCompile(`(?i)<script(?:\s[^>]*)?>[^<]|\son[a-z]+\s*=|\sstyle\s*=|<style|javascript:`)

func TestPageHeaders(t *testing.T) { // THREATS 23
	o, token, _ := startPages(t, shortTempDir(t))
	b := newBrowser(t, o)
	if status := b.signIn(token); status != http.StatusSeeOther {
		t.Fatalf("sign-in: %d", status)
	}
	for _, path := range []string{"/", "/thing", "/login", "/none", "/refused", "/broken"} {
		resp, body := b.get(PagePath + path)
		want := map[string]string{
			"Content-Security-Policy": pagesPolicy, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY",
		}
		for name, value := range want {
			if got := resp.Header.Get(name); got != value {
				t.Errorf("%s: %s = %q, want %q", path, name, got, value)
			}
		}
		if bad := inline.FindString(body); bad != "" {
			t.Errorf("%s has an inline script or style: %q", path, bad)
		}
		if !strings.Contains(body, `lang="en"`) || !strings.Contains(body, "<h1>") {
			t.Errorf("%s is not a page:\n%.300s", path, body)
		}
	}
	for _, directive := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
		if !strings.Contains(pagesPolicy, directive) {
			t.Errorf("the policy lacks %s", directive)
		}
	}
	if strings.Contains(pagesPolicy, "unsafe") {
		t.Error("the policy allows something unsafe")
	}
}

func TestPageFaults(t *testing.T) { // AM-78
	o, token, log := startPages(t, shortTempDir(t))
	b := newBrowser(t, o)
	b.signIn(token)
	for path, status := range map[string]int{"/none": 404, "/refused": 400, "/broken": 500} {
		resp, body := b.get(PagePath + path)
		if resp.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, status)
		}
		if strings.Contains(body, "secret cause") || strings.Contains(body, "<b>") {
			t.Errorf("%s tells too much:\n%s", path, body)
		}
	}
	if !strings.Contains(log.String(), "secret cause") {
		t.Error("the log does not say why a page failed")
	}
}

func TestPageShowsTheShell(t *testing.T) {
	o, token, _ := startPages(t, shortTempDir(t))
	b := newBrowser(t, o)
	b.signIn(token)
	_, body := b.get(PagePath + "/thing?did=x")
	for _, want := range []string{
		`<a href="/owner/page/thing" aria-current="page">Thing <span class="count" aria-label="3 waiting">3</span></a>`,
		`&lt;b&gt;&#34;Sarah&#34;&lt;/b&gt;`, `&lt;i&gt;hello&lt;/i&gt;`, `hx-get="/owner/page/thing"`, "Paused:", `href="#main"`, "Sign out",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	asset := regexp.MustCompile(`src="(/owner/page/static/page\.[^"]+)"`).FindStringSubmatch(body)
	if asset == nil {
		t.Fatal("the page names no script")
	}
	resp, script := newBrowser(t, o).get(asset[1]) // without a session
	if resp.StatusCode != 200 || !strings.Contains(script, "EventSource") || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
		t.Errorf("the script: %d %v", resp.StatusCode, resp.Header)
	}
	manifest := regexp.MustCompile(`rel="manifest" href="([^"]+)"`).FindStringSubmatch(body)
	if manifest == nil {
		t.Fatal("the page names no manifest")
	}
	var app struct {
		StartURL string `json:"start_url"`
		Icons    []struct{ Src, Type string }
	}
	resp, text := b.get(manifest[1])
	if err := json.Unmarshal([]byte(text), &app); err != nil || resp.Header.Get("Content-Type") != "application/manifest+json" || app.StartURL != PagePath+"/" {
		t.Errorf("the manifest: %v, %v\n%s", resp.Header, err, text)
	}
	for _, icon := range app.Icons {
		if resp, _ := b.get(icon.Src); resp.StatusCode != 200 || resp.Header.Get("Content-Type") != icon.Type {
			t.Errorf("%s: %d %v", icon.Src, resp.StatusCode, resp.Header)
		}
	}
	if resp, _ := b.get(PagePath + "/static/page.js"); resp.StatusCode != 404 {
		t.Errorf("a file without its hash: %d", resp.StatusCode)
	}
}

func TestForm(t *testing.T) {
	o, token, _ := startPages(t, shortTempDir(t))
	b := newBrowser(t, o)
	b.signIn(token)
	if resp, _ := b.do(http.MethodPost, PagePath+"/thing", url.Values{"x": {strings.Repeat("x", 2<<10)}}); resp.StatusCode != 413 {
		t.Errorf("a form that is too large: %d", resp.StatusCode)
	}
	if resp, _ := b.do(http.MethodPost, PagePath+"/thing", url.Values{}, "Content-Type", "text/plain"); resp.StatusCode != 415 {
		t.Errorf("a form of another type: %d", resp.StatusCode)
	}
	if resp, _ := b.do(http.MethodPost, PagePath+"/thing", url.Values{}); resp.Header.Get("Location") != PagePath+"/thing?did=did-it" {
		t.Errorf("a form: %v", resp.Header)
	}
}

func TestVendoredFile(t *testing.T) {
	const want = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717" // htmx.org 2.0.11
	data, err := os.ReadFile("page/htmx.min.js")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	if diff := cmp.Diff(want, hex.EncodeToString(sum[:])); diff != "" {
		t.Error("htmx.min.js is not the file that page/README.md names:", diff)
	}
}
