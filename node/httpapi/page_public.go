package httpapi

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/html"

	"github.com/labstack/echo/v4"
)

// PublicPages are pages for everybody, on the public listener or below [LinkPath]. They have the style of the owner's
// page, but no session or navigation, and no script unless [PublicPages.RenderWithScript] renders them. A page is a service's
// template named "page", which may call the functions in pageFuncs.
type PublicPages struct {
	assets map[string]string // URLs by file name
}

// NewPublicPages adds the style sheet, the icon and the script to e.
func NewPublicPages(e *echo.Echo) *PublicPages { return newPublicPages(e, "") }

func newPublicPages(e *echo.Echo, below string) *PublicPages {
	return &PublicPages{addAssets(e, below, "public", "page.css", "icon.svg", "page.js")}
}

// Template parses the templates of a service, like [Pages.Template].
func (p *PublicPages) Template(files fs.FS, funcs map[string]any, names ...string) *PageTemplate {
	asset := map[string]any{"asset": func(name string) string { return p.assets[name] }}
	return &PageTemplate{template.Must(template.New("").Funcs(pageFuncs).Funcs(asset).Funcs(funcs).ParseFS(files, names...))}
}

// publicPolicy lets a page load its style and its icon and send forms to its own origin. Everything else is forbidden.
const publicPolicy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Render responds with the template "page".
func (p *PublicPages) Render(c echo.Context, t *PageTemplate, status int, data any) error {
	return p.render(c, t, status, data, publicPolicy)
}

// RenderWithScript is Render for a page that may load page.js, and works without it.
func (p *PublicPages) RenderWithScript(c echo.Context, t *PageTemplate, status int, data any) error {
	return p.render(c, t, status, data, publicPolicy+"; script-src 'self'")
}

func (p *PublicPages) render(c echo.Context, t *PageTemplate, status int, data any, policy string) error {
	var buf bytes.Buffer
	if err := t.set.ExecuteTemplate(&buf, "page", data); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	h := c.Response().Header()
	h.Set("Content-Security-Policy", policy)
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
