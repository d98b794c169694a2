package httpapi

import (
	"bytes"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// PublicPages are pages for everybody, on the public listener or below [LinkPath]. They have the style of the owner's
// page, but no script, session or navigation. A page is a service's template named "page", which may call the functions
// for strangers' text.
type PublicPages struct {
	files map[string]asset // by path
	paths map[string]string
}

// NewPublicPages adds the style sheet and the icon to e.
func NewPublicPages(e *echo.Echo) *PublicPages { return newPublicPages(e, "") }

func newPublicPages(e *echo.Echo, below string) *PublicPages {
	p := &PublicPages{files: make(map[string]asset), paths: make(map[string]string)}
	for name, kind := range map[string]string{"page.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"} {
		body, hashed := readAsset(name)
		path := below + "/static/" + hashed
		p.files[path], p.paths[name] = asset{body: body, kind: kind}, path
		e.GET(path, p.file)
		e.HEAD(path, p.file)
	}
	return p
}

func (p *PublicPages) file(c echo.Context) error {
	f := p.files[c.Path()]
	c.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	return c.Blob(http.StatusOK, f.kind, f.body)
}

// Template parses the templates of a service. It panics if a template does not parse, which is a programming error.
func (p *PublicPages) Template(files fs.FS, names ...string) *template.Template {
	funcs := template.FuncMap{"asset": func(name string) string { return p.paths[name] }}
	return template.Must(template.New("").Funcs(pageFuncs).Funcs(funcs).ParseFS(files, names...))
}

// publicPolicy lets a page load its style and its icon and send forms to its own origin. Everything else is forbidden.
const publicPolicy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Render responds with the template "page".
func (p *PublicPages) Render(c echo.Context, t *template.Template, status int, data any) error {
	var buf bytes.Buffer
	if err := t.ExecuteTemplate(&buf, "page", data); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	h := c.Response().Header()
	h.Set("Content-Security-Policy", publicPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	body := buf.Bytes()
	if c.Request().Method == http.MethodHead {
		body = nil
	}
	return c.Blob(status, "text/html; charset=utf-8", body)
}

// WantsPage reports whether the client is a browser: its Accept header names HTML, and JSON only after HTML.
func WantsPage(req *http.Request) bool {
	accept := req.Header.Get("Accept")
	page, data := strings.Index(accept, "text/html"), strings.Index(accept, "application/json")
	return page >= 0 && (data < 0 || page < data)
}
