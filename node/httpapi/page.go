package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	template "github.com/DataDog/datadog-agent/pkg/template/html"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// PagePath is the path of the owner's page on the owner's listener.
const PagePath = "/owner/page"

//go:embed page
var pageFiles embed.FS

// Pages serves the owner's page. Services add parts to it, each with an entry in the navigation and its own
// templates. Every part works without JavaScript: its forms POST, and the response is a 303. With JavaScript, the
// page fetches its live region again when something in it has changed.
//
// A client over TCP must have signed in or send the owner's token as a bearer token. Only the sign-in form and the
// static files are open to everybody. Add parts before the first request.
type Pages struct {
	group    *echo.Group
	shell    *template.Template
	assets   map[string]string // URLs by file name
	nav      []Nav
	bar      func(ctx context.Context) Bar
	nameOf   func(ctx context.Context, id string) string // nil without a node
	sources  []Source
	streams  chan struct{} // holds one value per open stream
	stopped  chan struct{} // closed when the listener stops, so that streams end at once
	stop     func()
	sessions *sessions

	loginPage, faultPage *PageTemplate
}

// Nav is an entry of the navigation.
type Nav struct {
	Path  string // below [PagePath], "" for the start
	Title string
	// Under is the title of the top entry that contains this entry; "" for a top entry. If the title is unknown, this
	// entry is a top entry. The page of an entry has links to its top entry and to all entries under it.
	Under string
	// Count returns how many items wait there; nil for no number. It must be cheap, because every page calls it.
	Count func(ctx context.Context) int
	// Shown reports whether the navigation has the entry now; nil for always.
	Shown func() bool
}

// MaxCount is the first count of a [Nav] that is not shown exactly: the entry shows "50+".
const MaxCount = 50

// Bar is the content of the bar at the top of every page.
type Bar struct {
	Name   string // of the agent
	Paused bool
}

// Source tells one open page what has changed: for each change it calls changed with a topic from a fixed set. It
// returns when ctx ends.
type Source func(ctx context.Context, changed func(topic string))

// PageTemplate is the template of a page, with the templates that it calls.
type PageTemplate struct{ set *template.Template }

// View is the data of a page. A page template defines "live", the region that is fetched again, and may define "top"
// and "rest" above and below it. Those two are not fetched again, so that text in their forms is not lost.
type View struct {
	Title  string
	Status int      // 0 is 200
	Topics []string // the topics that cause a new fetch of the live region
	Self   string   // path and query for the next fetch of this page; "" means the request's
	Done   string   // the result of the previous form
	Undo   *Undo    // reverses the previous form; nil if that is impossible
	Error  string   // the error of the previous form
	Data   any
}

// Undo is a form with one button that reverses an action.
type Undo struct {
	Path   string // below the page
	Fields map[string]string
}

func newPages(e *echo.Echo, dir string) *Pages {
	p := &Pages{
		assets:  addAssets(e, PagePath, "private", "page.css", "page.js", "htmx.min.js", "icon.svg", "icon.png", "app.webmanifest"),
		streams: make(chan struct{}, maxStreamsOpen), stopped: make(chan struct{}),
		sessions: newSessions(dir),
	}
	p.stop = sync.OnceFunc(func() { close(p.stopped) })
	p.shell = template.Must(template.New("shell").Funcs(pageFuncs).Funcs(template.FuncMap{
		"asset":   func(name string) string { return p.assets[name] },
		"page":    pageURL,
		"waiting": shellData.Waiting,
	}).ParseFS(pageFiles, "page/shell.html"))
	p.loginPage = p.Template(pageFiles, nil, "page/login.html")
	p.faultPage = p.Template(pageFiles, nil, "page/fault.html")
	return p
}

// addAssets adds a route below a path for each of these embedded files, and returns their URLs by name. A URL has a hash
// of the file, so that browsers (and, with the scope "public", all caches) may keep the file forever. A file names the
// others before it without the hash.
func addAssets(e *echo.Echo, below, scope string, names ...string) map[string]string {
	urls := make(map[string]string)
	for _, name := range names {
		body, err := pageFiles.ReadFile("page/" + name)
		if err != nil {
			panic("httpapi: " + err.Error()) // the file is not embedded
		}
		for other, url := range urls {
			body = bytes.ReplaceAll(body, []byte(`"`+other+`"`), []byte(`"`+url+`"`))
		}
		sum := sha256.Sum256(body)
		stem, ext, _ := strings.Cut(name, ".")
		urls[name] = below + "/static/" + stem + "." + hex.EncodeToString(sum[:6]) + "." + ext
		kind := map[string]string{
			".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
			".png": "image/png", ".webmanifest": "application/manifest+json",
		}[path.Ext(name)]
		e.Match([]string{http.MethodGet, http.MethodHead}, urls[name], func(c echo.Context) error {
			c.Response().Header().Set("Cache-Control", scope+", max-age=31536000, immutable")
			return c.Blob(http.StatusOK, kind, body)
		})
	}
	return urls
}

func pageURL(path string) string {
	if path == "" {
		return PagePath + "/"
	}
	return PagePath + "/" + path
}

// Template parses a page from files of a service: the first file has the page's parts, the others are shared with other
// pages. The templates read fields of the data and call functions: those of pageFuncs, and funcs, which may be methods;
// they cannot call methods of the data. It panics if a template does not parse, which is a programming error.
func (p *Pages) Template(files fs.FS, funcs map[string]any, names ...string) *PageTemplate {
	set := template.Must(p.shell.Clone()).Funcs(funcs)
	return &PageTemplate{template.Must(set.ParseFS(files, names...))}
}

// Group returns the group to which services add the routes of their pages. A GET shows a page; a POST acts, and ends
// with [Done] or an error.
func (p *Pages) Group() *echo.Group { return p.group }

// Add appends entries to the navigation.
func (p *Pages) Add(n ...Nav) { p.nav = append(p.nav, n...) }

// SetBar sets the function that returns the bar. Without it the bar is empty.
func (p *Pages) SetBar(bar func(ctx context.Context) Bar) { p.bar = bar }

// NamePeers sets the function that returns the name of a peer, for the pages of all services.
func (p *Pages) NamePeers(name func(ctx context.Context, id string) string) { p.nameOf = name }

// NameOf returns how to show the peer with an agent id: by the owner's alias, otherwise by the peer's own name in
// quotes, otherwise by the id, which may be cut. The text is untrusted.
func (p *Pages) NameOf(ctx context.Context, id string) string {
	if p.nameOf == nil || id == "" {
		return id
	}
	return p.nameOf(ctx, id)
}

// Follow adds a source of changes for open pages.
func (p *Pages) Follow(s Source) { p.sources = append(p.sources, s) }

// pagesPolicy lets a page load scripts, styles and images of its own origin, and images from data URLs, call its own
// origin, and send forms to it.
const pagesPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; manifest-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

func setPageHeaders(h http.Header) {
	h.Set("Content-Security-Policy", pagesPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
}

type shellData struct {
	View
	Path       string // below the page, to find the current entry
	Nav        []navItem
	Sub        []navItem // the current top entry and the entries under it
	Bar        Bar
	HasSession bool // the browser has signed in, so it can sign out
	Phone      bool // the request came to the public address, from a phone with a passkey
}

type navItem struct {
	URL, Title, Count string
	Current           bool
}

// Render responds with a page.
func (p *Pages) Render(c echo.Context, page *PageTemplate, v View) error {
	ctx, r := c.Request().Context(), c.Request()
	s := shellData{View: v, Path: strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, PagePath), "/")}
	if s.Self == "" {
		s.Self = selfURL(r)
	}
	s.Phone = isPhone(r)
	if page != p.loginPage && s.Path != "phone" {
		_, s.HasSession = p.sessions.find(r)
		s.Nav, s.Sub = p.navigation(ctx, s.Path)
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

// selfURL returns the URL for the next fetch of a page: the request's, without the result of the previous form.
func selfURL(r *http.Request) string {
	q := r.URL.Query()
	q.Del("did")
	q.Del("who")
	if len(q) == 0 {
		return r.URL.EscapedPath()
	}
	return r.URL.EscapedPath() + "?" + q.Encode()
}

// navigation returns the top entries, each with the sum of its count and those of the entries under it. sub is the
// current top entry with the entries under it; nil if it has none. The current entry has the longest path that the
// page's path starts with.
func (p *Pages) navigation(ctx context.Context, path string) (top, sub []navItem) {
	current := -1
	isTop := make(map[string]bool) // by title
	for i, n := range p.nav {
		matches := path == n.Path || n.Path != "" && strings.HasPrefix(path, n.Path+"/")
		if matches && (current < 0 || len(n.Path) > len(p.nav[current].Path)) {
			current = i
		}
		isTop[n.Title] = isTop[n.Title] || n.Under == ""
	}
	parent := func(n Nav) string {
		if isTop[n.Under] {
			return n.Under
		}
		return n.Title
	}
	counts := make(map[string]int) // by the title of the top entry
	for i, n := range p.nav {
		if n.Shown != nil && !n.Shown() {
			continue
		}
		title, count := parent(n), 0
		if n.Count != nil {
			count = n.Count(ctx)
		}
		counts[title] += count
		item := navItem{URL: pageURL(n.Path), Title: n.Title, Count: formatNavCount(count), Current: i == current}
		if current >= 0 && title == parent(p.nav[current]) {
			sub = append(sub, item)
		}
		if title == n.Title {
			top = append(top, item)
		}
	}
	for i := range top {
		top[i].Count = formatNavCount(counts[top[i].Title])
		top[i].Current = current >= 0 && top[i].Title == parent(p.nav[current])
	}
	if len(sub) < 2 {
		sub = nil
	}
	return top, sub
}

func formatNavCount(n int) string {
	switch {
	case n >= MaxCount:
		return strconv.Itoa(MaxCount) + "+"
	case n > 0:
		return strconv.Itoa(n)
	}
	return ""
}

// Waiting returns the first count of the navigation, for the title of the page.
func (s shellData) Waiting() string {
	for _, n := range s.Nav {
		if n.Count != "" {
			return n.Count
		}
	}
	return ""
}

// Done answers a form that succeeded: it redirects the browser to a page that shows the result. did is the key of a
// text that the page knows. If did were the text itself, a link could put any words into the page.
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

// renderFaults responds to an error with a page that explains it. It returns the error for the log.
func (p *Pages) renderFaults(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if err == nil || c.Response().Committed {
			return err
		}
		refusal := PublicError(err)
		title := "This did not work"
		if refusal.Status == http.StatusNotFound {
			title = "Page not found"
		}
		text := refusal.Message
		if refusal.Status >= http.StatusInternalServerError && !errors.Is(refusal, wire.ErrUnavailable) {
			text = "Something went wrong on this node. Look for " + c.Response().Header().Get(headerRequestID) + " in the log for the reason."
		}
		if err := p.Render(c, p.faultPage, View{Title: title, Status: refusal.Status, Error: text}); err != nil {
			return err
		}
		return refusal
	}
}
