package directory

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
)

const wantsHTML = "text/html,application/xhtml+xml,*/*;q=0.8"

// page fetches a page as a browser does.
func (w *world) page(path string, status int) string {
	w.t.Helper()
	got := send(w.edge.Handler(), "GET", path, "", "Accept", wantsHTML)
	if got.Code != status || !strings.HasPrefix(got.Header().Get("Content-Type"), "text/html") {
		w.t.Fatalf("GET %s = %d %v\n%s", path, got.Code, got.Header(), got.Body)
	}
	csp := got.Header().Get("Content-Security-Policy")
	if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script-src") || strings.Contains(csp, "unsafe-inline") {
		w.t.Errorf("GET %s has the policy %q", path, csp)
	}
	return got.Body.String()
}

// join fetches the page to join, the only one that may load a script.
func (w *world) join() string {
	w.t.Helper()
	got := send(w.edge.Handler(), "GET", "/join", "", "Accept", wantsHTML)
	csp := got.Header().Get("Content-Security-Policy")
	if got.Code != 200 || !strings.HasPrefix(csp, "default-src 'none'") || !strings.HasSuffix(csp, "; script-src 'self'") || got.Header().Get("Referrer-Policy") != "no-referrer" {
		w.t.Fatalf("GET /join = %d %v\n%s", got.Code, got.Header(), got.Body)
	}
	return got.Body.String()
}

// TestJoinPage: the page says how to join, for each mode of registration.
func TestJoinPage(t *testing.T) {
	for mode, part := range map[Mode]string{
		Open:   `agentmesh quickstart agent --join &#39;https://directory.example/join&#39; &amp;&amp; agentmesh serve`,
		Invite: `agentmesh register &#39;https://directory.example/join#<span data-code>CODE</span>&#39;`,
		Closed: "only agents of its operator",
	} {
		w := newWorld(t, func(c *Config) { c.Mode = mode })
		page := strings.ReplaceAll(w.join(), "'", "&#39;")
		if !strings.Contains(page, part) || strings.Contains(page, testBase+"/mailbox/") != (mode != Closed) || strings.Contains(page, "<svg") != (mode == Open) || strings.Contains(page, "token create --qr") != (mode == Invite) {
			t.Errorf("%s:\n%s", mode, page)
		}
	}
}

const hostile = "<script>alert(1)</script>\u202eevil\x1b[2J"

func TestPages(t *testing.T) {
	w := newWorld(t)
	for _, card := range []wire.Value{
		testCard("am_sarah", text("name", "Sarah's Assistant"), text("description", "Books meetings in Zürich"),
			obj("owner", text("name", "Sarah Okafor"), text("contact", "sarah@private.example"))),
		testCard("am_evil", text("name", hostile), text("description", hostile), members("capabilities", hostile), text("endpoint", "https://evil.example/?a=<b>&c='d'\"e\"")),
	} {
		w.register(alice, card)
	}
	all := w.page("/", 200)
	for _, part := range []string{"2 agents to talk to", "Sarah&#39;s Assistant", `href="/agents/am_sarah"`, "key not proven", "Anybody may <a href=\"/join\">join</a>"} {
		if !strings.Contains(all, part) {
			t.Errorf("the front page lacks %q:\n%s", part, all)
		}
	}
	found := w.page("/?q="+url.QueryEscape("zurich meetings")+"&capability=scheduling&verified=", 200)
	if !strings.Contains(found, "Sarah") || strings.Contains(found, "am_evil") || !strings.Contains(found, "/v1/agents?capability=scheduling&amp;q=zurich&#43;meetings") {
		t.Errorf("a search shows\n%s", found)
	}
	if none := w.page("/?q=nobody", 200); !goldentest.Page(t, "an empty search", none) {
		t.Errorf("an empty search shows\n%s", none)
	}
	if wrong := w.page("/?q="+strings.Repeat("a+", 9)+"a", 400); !goldentest.Page(t, "nine words", wrong) {
		t.Errorf("a bad search shows\n%s", wrong)
	}
	if wrong := w.page("/?cursor=x", 400); !strings.Contains(wrong, "cursor") {
		t.Errorf("a bad cursor shows\n%s", wrong)
	}
	card := w.page("/agents/am_sarah", 200)
	for _, part := range []string{
		"curl https://directory.example/v1/agents/am_sarah", `aria-label="QR code of the endpoint"`, "https://am-sarah.example/agentmesh", "Sarah Okafor", "Books meetings",
	} {
		if !strings.Contains(card, part) {
			t.Errorf("the page of a card lacks %q:\n%s", part, card)
		}
	}
	if strings.Contains(card, "private.example") {
		t.Error("the page shows contact data")
	}
	for _, path := range []string{"/", "/agents/am_evil", "/?capability=" + url.QueryEscape(hostile), "/?q=" + url.QueryEscape(hostile)} {
		if page := w.page(path, 200); strings.Contains(page, "<script") || strings.ContainsAny(page, "\u202e\x1b") {
			t.Errorf("%s lets a stranger's text act:\n%s", path, page)
		}
	}
	w.page("/agents/am_nobody", 404)
	w.page("/agents/%3Cscript%3E", 404)
	if got := w.do("GET", "/v1/agents/am_sarah", "", "Accept", wantsHTML); !strings.HasPrefix(got.Header().Get("Content-Type"), "application/json") {
		t.Errorf("the API answers %v", got.Header())
	}
	if got := w.do("HEAD", "/", "", "Accept", wantsHTML); got.Body.Len() != 0 || got.Code != 200 {
		t.Errorf("HEAD = %d with %d bytes", got.Code, got.Body.Len())
	}
}

// TestPagesNameTheOperator: every page names the operator, and the page to join the lifetime that the operator set.
func TestPagesNameTheOperator(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Site, c.Lifetime = site.Operator{Name: "Agents of Cork", Contact: "operator@cork.example <b>"}, 90*24*time.Hour
	})
	if page := w.join(); !strings.Contains(page, "stays for 90 days") {
		t.Errorf("the page to join lacks the lifetime:\n%s", page)
	}
	for path, status := range map[string]int{"/": 200, "/agents/am_nobody": 404} {
		if page := w.page(path, status); !strings.Contains(page, "<span>Agents of Cork</span>") || !strings.Contains(page, "operator@cork.example &lt;b&gt;") {
			t.Errorf("%s does not name the operator:\n%s", path, page)
		}
	}
}

// TestPageOfMirror: the page of a mirror does not explain how to register.
func TestPageOfMirror(t *testing.T) {
	w := newWorld(t, readOnly)
	if page := w.join(); strings.Contains(page, "card.json") || !strings.Contains(page, "read-only copy") {
		t.Errorf("the page of a mirror:\n%s", page)
	}
}

// TestPagesGoOn: the button for the next page leads through all agents.
func TestPagesGoOn(t *testing.T) {
	w := newWorldWithCards(t, 120)
	seen := 0
	for path := "/?capability=scheduling"; path != ""; {
		page := w.page(path, 200)
		seen += strings.Count(page, `<svg viewBox`)
		_, after, ok := strings.Cut(page, `<a class="button" href="`)
		for ok && !strings.HasPrefix(after[strings.Index(after, `"`):], `" rel="next"`) {
			_, after, ok = strings.Cut(after, `<a class="button" href="`)
		}
		if path = ""; ok {
			path = strings.ReplaceAll(after[:strings.Index(after, `"`)], "&amp;", "&")
		}
	}
	if seen != 120 {
		t.Errorf("the pages show %d agents, want 120", seen)
	}
}
