package directory

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// sendForm sends a form as a browser does.
func (w *world) sendForm(path, origin string, form url.Values, header ...string) *httptest.ResponseRecorder {
	header = append([]string{"Accept", wantsHTML, "Content-Type", "application/x-www-form-urlencoded", "Host", "directory.example", "Origin", origin}, header...)
	return send(w.edge.Handler(), "POST", path, form.Encode(), header...)
}

// TestReportForm: a reader reports a card without JavaScript, within the limits of the API; a page of another origin
// cannot report in the reader's name.
func TestReportForm(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_evil", text("name", "Evil")))
	if page := w.page("/agents/am_evil", 200); !strings.Contains(page, `action="/agents/am_evil/report"`) {
		t.Fatalf("the page has no form:\n%s", page)
	}
	form := url.Values{"kind": {"spam"}, "text": {"It sends\r\nadvertising " + hostile}}
	const path, own = "/agents/am_evil/report", "https://directory.example"
	for _, origin := range []string{"https://elsewhere.example", "null"} {
		if got := w.sendForm(path, origin, form); got.Code != 403 || !strings.Contains(got.Body.String(), "<h1>Refused</h1>") {
			t.Errorf("a form from %s = %d %s", origin, got.Code, got.Body)
		}
	}
	if got := w.sendForm(path, own, form, "Sec-Fetch-Site", "cross-site"); got.Code != 403 {
		t.Errorf("a form of another site = %d", got.Code)
	}
	if list, _, err := w.reg.Reports(t.Context(), "", "", 10); err != nil || len(list) != 0 {
		t.Fatalf("refused forms made %v, %v", list, err)
	}
	got := w.sendForm(path, own, form, "Remote", "192.0.2.7:4711")
	if got.Code != 200 || !goldentest.Page(t, "report", got.Body.String()) || got.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("the form = %d %v %s", got.Code, got.Header(), got.Body)
	}
	list, _, err := w.reg.Reports(t.Context(), "am_evil", "", 10)
	if err != nil || len(list) != 1 || list[0].Kind != "spam" || !strings.HasPrefix(list[0].Text, "It sends\nadvertising") || list[0].From != "192.0.2.7" {
		t.Errorf("the report is %+v, %v", list, err)
	}
	for range reportsPerHour {
		got = w.sendForm(path, own, form, "Remote", "192.0.2.7:4711")
	}
	if got.Code != 429 || !strings.Contains(got.Body.String(), "<h1>Too many requests</h1>") || got.Header().Get("Retry-After") == "" {
		t.Errorf("after too many reports = %d %v", got.Code, got.Header())
	}
	if got := w.sendForm("/agents/am_nobody/report", own, form); got.Code != 404 {
		t.Errorf("a report of nobody = %d", got.Code)
	}
	if got := w.sendForm(path, own, url.Values{"kind": {"love"}}); got.Code != 400 {
		t.Errorf("a report of no kind = %d", got.Code)
	}
	if got := w.sendForm(path, own, url.Values{"kind": {"spam"}, "text": {strings.Repeat("x", 20<<10)}}); got.Code != 413 {
		t.Errorf("a large report = %d", got.Code)
	}
}

// TestErrorsForBrowsers: a browser gets an error as a page, and a program as before.
func TestErrorsForBrowsers(t *testing.T) {
	w := newWorld(t)
	if page := w.page("/nothing-here", 404); !goldentest.Page(t, "an unknown address", page) {
		t.Errorf("the page of an unknown address:\n%s", page)
	}
	for _, path := range []string{"/nothing-here", "/v1/agents/am_nobody", "/terms"} {
		if page := w.page(path, 404); !strings.Contains(page, "<h1>Not found</h1>") || !strings.Contains(page, `href="/"`) {
			t.Errorf("%s for a browser:\n%s", path, page)
		}
		for _, accept := range []string{"", "*/*", "application/json", "application/json, text/html"} {
			got := send(w.edge.Handler(), "GET", path, "", "Accept", accept)
			if got.Code != 404 || got.Header().Get("Content-Type") != "application/json" || errorCode(got.Body.Bytes()) == "" || got.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s with %q = %d %v %s", path, accept, got.Code, got.Header(), got.Body)
			}
		}
	}
}

// TestChangesPage: people see the newest changes first, with the reasons of removals.
func TestChangesPage(t *testing.T) {
	w := newWorld(t)
	if page := w.page("/changes", 200); !goldentest.Page(t, "an empty directory", page) {
		t.Errorf("an empty directory:\n%s", page)
	}
	for i := range pageAgents + 5 {
		w.register(alice, testCard("am_"+strings.Repeat("a", i+1)+"_"))
	}
	if err := w.reg.Remove(t.Context(), "am_a_", "spam "+hostile, "cli"); err != nil {
		t.Fatal(err)
	}
	page := w.page("/changes", 200)
	if n := strings.Count(page, "<li>"); n != pageAgents {
		t.Errorf("%d changes, want %d", n, pageAgents)
	}
	first, rest, _ := strings.Cut(page[strings.Index(page, "<li>"):], "</li>")
	if id := strings.Repeat("a", pageAgents+5); !strings.Contains(rest, `href="/agents/am_`+id+`_"><span class="face"`) || !strings.Contains(rest, `<bdi class="line">Agent am_`+id) {
		t.Errorf("no name beside a registration:\n%s", rest)
	}
	if !strings.Contains(first, "removed: ") || !strings.Contains(first, "spam") || strings.ContainsAny(page, "\u202e\x1b") || strings.Contains(page, "<script") {
		t.Errorf("the first change:\n%s", first)
	}
}

// TestPagesOfTheOperator: terms and logo come from the configuration.
func TestPagesOfTheOperator(t *testing.T) {
	logo := []byte("\x89PNG\r\n\x1a\n0000")
	w := newWorld(t, func(c *Config) { c.Site = site.Operator{Name: "Cork", Terms: "Be kind.\n<b>Always.</b>", Logo: logo} })
	page := w.page("/terms", 200)
	if !strings.Contains(page, "Be kind.") || strings.Contains(page, "<b>Always") || !strings.Contains(page, `href="/terms"`) {
		t.Errorf("the terms:\n%s", page)
	}
	_, path, _ := strings.Cut(page, `<a href="/"><img src="`)
	path, _, _ = strings.Cut(path, `"`)
	got := send(w.edge.Handler(), "GET", path, "")
	if !strings.HasSuffix(path, ".png") || got.Code != 200 || got.Header().Get("Content-Type") != "image/png" || got.Header().Get("X-Content-Type-Options") != "nosniff" || got.Body.String() != string(logo) {
		t.Errorf("the logo at %q = %d %v", path, got.Code, got.Header())
	}
	w = newWorld(t, func(c *Config) { c.Site.Terms = "https://elsewhere.example/terms" })
	if page := w.page("/", 200); !strings.Contains(page, `href="https://elsewhere.example/terms"`) {
		t.Errorf("the front page does not link the terms:\n%s", page)
	}
	w = newWorld(t, func(c *Config) { c.Site.Terms = "javascript:alert(1)" })
	if page := w.page("/", 200); strings.Contains(page, `href="javascript`) {
		t.Error("the terms are a script")
	}
}
