package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// PagePath is where the owner's page lies on the owner's listener.
const PagePath = "/owner/page"

//go:embed page
var pageFiles embed.FS

// Pages is the owner's page in a browser: a shell that services add their parts to, each part with an entry in the
// navigation and templates of its own. Every part works without JavaScript: forms that POST and are answered with
// 303. With JavaScript the live region of a page is fetched again when something changed that it shows.
//
// Who asks over TCP has signed in, or carries the owner's token as a bearer; only the sign-in form and the style
// sheet are there for everybody. Add parts before the first request.
type Pages struct {
	group    *echo.Group
	shell    *template.Template
	assets   map[string]asset // by name with hash
	names    map[string]string
	nav      []Nav
	bar      func(ctx context.Context) Bar
	sources  []Source
	streams  chan struct{} // one for each open stream
	stopped  chan struct{} // closed when the listener stops, so that streams let go at once
	stop     func()
	sessions *sessions

	loginPage, faultPage *PageTemplate
}

// Nav is an entry of the navigation.
type Nav struct {
	Path  string // below [PagePath], "" for the start
	Title string
	// Count says how much waits there, nil for an entry that shows no number. It must be cheap: every page asks.
	Count func(ctx context.Context) int
}

// MaxCount bounds what a [Nav] counts to: from there on it shows "50+".
const MaxCount = 50

// Bar is what stands at the top of every page.
type Bar struct {
	Name   string // of the agent
	Paused bool
}

// Source tells an open page what changed: it calls changed with fixed topics until ctx ends and returns then. It is
// called for every page that is open.
type Source func(ctx context.Context, changed func(topic string))

// PageTemplate is a page in the shell.
type PageTemplate struct{ set *template.Template }

// View is what a page shows. A page template defines "live", the region that is fetched again, and may define "top"
// and "rest", what stands above and below it and stays as it is: forms that are typed into.
type View struct {
	Title  string
	Status int      // 0 is 200
	Topics []string // what has the live region fetched again; none leaves it as it is
	Self   string   // path and query of this page, for fetching it again; "" is that of the request
	Said   string   // what the form before did
	Wrong  string   // what was wrong with it
	Data   any
}

type asset struct {
	body []byte
	kind string
}

func newPages(dir string) *Pages {
	p := &Pages{
		assets: make(map[string]asset), names: make(map[string]string),
		streams: make(chan struct{}, maxStreamsOpen), stopped: make(chan struct{}),
		sessions: newSessions(dir),
	}
	p.stop = sync.OnceFunc(func() { close(p.stopped) })
	for name, kind := range map[string]string{
		"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8",
		"htmx.min.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		body, err := pageFiles.ReadFile("page/" + name)
		if err != nil {
			panic("httpapi: " + err.Error()) // it is embedded
		}
		sum := sha256.Sum256(body)
		stem, ext, _ := strings.Cut(name, ".")
		hashed := stem + "." + hex.EncodeToString(sum[:6]) + "." + ext
		p.assets[hashed] = asset{body: body, kind: kind}
		p.names[name] = PagePath + "/static/" + hashed
	}
	p.shell = template.Must(template.New("shell").Funcs(pageFuncs).Funcs(template.FuncMap{
		"asset": func(name string) string { return p.names[name] },
		"page":  func(path string) string { return pageURL(path) },
	}).ParseFS(pageFiles, "page/shell.html"))
	p.loginPage = p.Template(pageFiles, "page/login.html")
	p.faultPage = p.Template(pageFiles, "page/fault.html")
	return p
}

// pageURL is the URL of a path below the page.
func pageURL(path string) string {
	if path == "" {
		return PagePath + "/"
	}
	return PagePath + "/" + path
}

// Template reads a page from files of a service: the first has the page's parts, the others what it shares. A template
// that does not parse is a mistake of the program, and panics.
func (p *Pages) Template(files fs.FS, names ...string) *PageTemplate {
	set := template.Must(p.shell.Clone())
	return &PageTemplate{template.Must(set.ParseFS(files, names...))}
}

// Group is where services add the routes of their pages. A GET shows, a POST acts and ends with [Done] or [Pages.Fault].
func (p *Pages) Group() *echo.Group { return p.group }

// Add puts an entry into the navigation, after those that are there.
func (p *Pages) Add(n ...Nav) { p.nav = append(p.nav, n...) }

// Title has the bar filled in. Without it the bar is empty.
func (p *Pages) Title(bar func(ctx context.Context) Bar) { p.bar = bar }

// Follow adds something that tells open pages what changed.
func (p *Pages) Follow(s Source) { p.sources = append(p.sources, s) }

// pagesPolicy lets a page load its own script, style and icon, ask its own origin, send forms there, and nothing else.
const pagesPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// shut sets the headers of every answer below the page.
func shut(h http.Header) {
	h.Set("Content-Security-Policy", pagesPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

// shown is what the shell's template gets.
type shown struct {
	View
	Path string // below the page, for the entry that is current
	Nav  []navItem
	Bar  Bar
	In   bool // signed in with a session, which can be ended
}

type navItem struct {
	URL, Title, Count string
	Current           bool
}

// Render answers with a page.
func (p *Pages) Render(c echo.Context, page *PageTemplate, v View) error {
	ctx, r := c.Request().Context(), c.Request()
	s := shown{View: v, Path: strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, PagePath), "/")}
	if s.Self == "" {
		s.Self = selfOf(r)
	}
	if page != p.loginPage {
		_, s.In = p.sessions.of(r)
		s.Nav = p.navigation(ctx, s.Path)
		if p.bar != nil {
			s.Bar = p.bar(ctx)
		}
	}
	var buf bytes.Buffer
	if err := page.set.ExecuteTemplate(&buf, "shell", s); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	if v.Status == 0 {
		v.Status = http.StatusOK
	}
	return c.Blob(v.Status, "text/html; charset=utf-8", buf.Bytes())
}

// selfOf is where a page is fetched again: without what a form before it did, and after a POST the page it belongs to.
func selfOf(r *http.Request) string {
	q := r.URL.Query()
	q.Del("did")
	if len(q) == 0 {
		return r.URL.EscapedPath()
	}
	return r.URL.EscapedPath() + "?" + q.Encode()
}

// navigation marks the entry whose path the page's path begins with, the longest where several do.
func (p *Pages) navigation(ctx context.Context, path string) []navItem {
	items := make([]navItem, 0, len(p.nav))
	current := -1
	for i, n := range p.nav {
		item := navItem{URL: pageURL(n.Path), Title: n.Title}
		if n.Count != nil {
			if k := n.Count(ctx); k >= MaxCount {
				item.Count = strconv.Itoa(MaxCount) + "+"
			} else if k > 0 {
				item.Count = strconv.Itoa(k)
			}
		}
		here := path == n.Path || n.Path != "" && strings.HasPrefix(path, n.Path+"/")
		if here && (current < 0 || len(n.Path) > len(p.nav[current].Path)) {
			current = i
		}
		items = append(items, item)
	}
	if current >= 0 {
		items[current].Current = true
	}
	return items
}

// Done answers a form that was carried out: the browser goes on to a page that says so. did names one of the texts
// that the page knows; a text itself would let a link put words into the page's mouth.
func Done(c echo.Context, path, did string) error {
	target := pageURL(path)
	if did != "" {
		sep := "?"
		if strings.Contains(target, "?") {
			sep = "&"
		}
		target += sep + "did=" + did
	}
	return c.Redirect(http.StatusSeeOther, target)
}

// Fault answers with a page that says why err happened. It returns err, so that the log says so too.
func (p *Pages) Fault(c echo.Context, err error) error {
	told := public(err)
	if c.Response().Committed {
		return err
	}
	title := "That did not work"
	if told.Status == http.StatusNotFound {
		title = "There is no such page"
	}
	text := told.Message
	if told.Status >= http.StatusInternalServerError && !errors.Is(told, wire.ErrUnavailable) {
		text = "Something went wrong here. The log says more, under " + RequestID(c) + "."
	}
	if err := p.Render(c, p.faultPage, View{Title: title, Status: told.Status, Wrong: text}); err != nil {
		return err
	}
	return told
}

// pages is the middleware of the group: what a handler refuses becomes a page.
func (p *Pages) faults(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			return p.Fault(c, err)
		}
		return nil
	}
}

// serveAsset answers with a file whose name changes with its content.
func (p *Pages) serveAsset(c echo.Context) error {
	a, ok := p.assets[c.Param("name")]
	if !ok {
		return wire.ErrRoute
	}
	c.Response().Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	return c.Blob(http.StatusOK, a.kind, a.body)
}
