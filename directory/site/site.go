// Package site has the public pages of a directory that are not about cards: the operator's terms and logo, the newest
// changes, the answer to the report form, errors for browsers, and what the pages of cards share.
package site

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Files are the templates of all public pages. shell.html has what they share.
//
//go:embed page
var Files embed.FS

// Operator is what the public pages say about the operator of a directory.
type Operator struct {
	Name    string // title of the pages
	Contact string // how to reach the operator; "" shows nothing
	Terms   string // a URL or a text; "" for none
	Logo    []byte // what [ReadLogo] returns; nil for none
}

const maxLogo = 256 << 10

// logoKinds are the types of a logo. SVG is missing, because it can contain scripts.
var logoKinds = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp"}

// ReadLogo reads the file with the logo, and checks its size and type.
func ReadLogo(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLogo+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxLogo:
		return nil, errors.New("the file has more than 256 KiB")
	case logoKinds[http.DetectContentType(data)] == "":
		return nil, errors.New("the file is not a PNG, JPEG or WebP image")
	}
	return data, nil
}

// Shown is what every page shows, as the member Site of its data.
type Shown struct {
	Operator
	Version, Base, Protocol string // of the program; URL of the API; version of the protocol
	Days                    int    // how long a registration lasts
	LogoPath                string // "" for the icon of agentmesh
	TermsURL                string // "" for none
	Mode                    string // of registration
	Mirror                  bool   // nobody registers here
	Join                    string // the link to join, without a code
}

// Change is a change of a card, as pages show it.
type Change struct {
	wire.Change
	Name string // on the card; "" if the directory no longer has it
}

// Config configures the pages.
type Config struct {
	Shown   Shown
	Pages   *httpapi.PublicPages
	Guard   func(echo.HandlerFunc) echo.HandlerFunc     // the limits per address
	Changes func(ctx context.Context) ([]Change, error) // returns the newest changes
	// Report stores a report of a card.
	Report func(ctx context.Context, id wire.AgentID, kind, text string, from netip.Addr) error
}

type site struct {
	Config
	join, changes, terms, reported, fault *httpapi.PageTemplate
	cross                                 *http.CrossOriginProtection
}

type view struct {
	Title string
	Site  Shown
	Data  any
}

// Mount adds the pages, and shows errors to browsers as pages. It returns what the other pages show.
func Mount(e *echo.Echo, cfg Config) Shown {
	read := func(name string) *httpapi.PageTemplate {
		return cfg.Pages.Template(Files, nil, "page/shell.html", "page/"+name+".html")
	}
	s := &site{
		Config: cfg, join: read("join"), changes: read("changes"), terms: read("terms"), reported: read("reported"), fault: read("fault"),
		cross: http.NewCrossOriginProtection(),
	}
	get := func(path string, h echo.HandlerFunc) {
		e.GET(path, h)
		e.HEAD(path, h)
	}
	if kind := http.DetectContentType(cfg.Shown.Logo); len(cfg.Shown.Logo) > 0 {
		sum := sha256.Sum256(cfg.Shown.Logo)
		s.Shown.LogoPath = "/static/logo." + hex.EncodeToString(sum[:6]) + logoKinds[kind]
		get(s.Shown.LogoPath, func(c echo.Context) error {
			c.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			return c.Blob(http.StatusOK, kind, cfg.Shown.Logo)
		})
	}
	if s.Shown.TermsURL = cfg.Shown.Terms; s.Shown.TermsURL != "" && !isURL(cfg.Shown.Terms) {
		s.Shown.TermsURL = "/terms"
	}
	get("/terms", cfg.Guard(s.showTerms))
	get("/join", cfg.Guard(s.showJoin))
	get("/changes", cfg.Guard(s.showChanges))
	e.POST("/agents/:id/report", cfg.Guard(s.report))
	respond := e.HTTPErrorHandler
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if !c.Response().Committed && httpapi.WantsPage(c.Request()) {
			s.renderFault(c, httpapi.PublicError(err))
		}
		respond(err, c) // does nothing after a response
	}
	return s.Shown
}

func isURL(text string) bool {
	return (strings.HasPrefix(text, "https://") || strings.HasPrefix(text, "http://")) && !strings.ContainsAny(text, " \n\t")
}

func (s *site) showTerms(c echo.Context) error {
	switch s.Shown.TermsURL {
	case "":
		return wire.ErrRoute
	case "/terms":
		return s.Pages.Render(c, s.terms, http.StatusOK, view{"Terms", s.Shown, s.Shown.Terms})
	}
	return c.Redirect(http.StatusFound, s.Shown.TermsURL)
}

// showJoin shows how to join. The code of an invitation is not in the request, so only a page that needs none has a QR code.
func (s *site) showJoin(c echo.Context) error {
	var code *QR
	if s.Shown.Mode == "open" {
		code = NewQR(s.Shown.Join)
	}
	c.Response().Header().Set("Cache-Control", "public, max-age=10")
	return s.Pages.RenderWithScript(c, s.join, http.StatusOK, view{"Join", s.Shown, code})
}

func (s *site) showChanges(c echo.Context) error {
	list, err := s.Changes(c.Request().Context())
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "public, max-age=10")
	return s.Pages.Render(c, s.changes, http.StatusOK, view{"Changes", s.Shown, list})
}

const maxForm = 8 << 10

// report stores the report from the form on the page of a card. It refuses a form that a page of another origin sends.
func (s *site) report(c echo.Context) error {
	if err := s.cross.Check(c.Request()); err != nil {
		return wire.ErrCrossOrigin.Because(err)
	}
	form, err := httpapi.Form(c, maxForm)
	if err != nil {
		return err
	}
	// Browsers send line breaks as two characters and count them as one.
	text := strings.TrimSpace(strings.ReplaceAll(form.Get("text"), "\r\n", "\n"))
	if err := s.Report(c.Request().Context(), wire.AgentID(c.Param("id")), form.Get("kind"), text, httpapi.ClientAddr(c)); err != nil {
		return err
	}
	httpapi.Private(c)
	return s.Pages.Render(c, s.reported, http.StatusOK, view{"Reported", s.Shown, c.Param("id")})
}

var faultTitles = map[int]string{
	http.StatusNotFound: "Not found", http.StatusTooManyRequests: "Too many requests", http.StatusForbidden: "Refused",
	http.StatusServiceUnavailable: "Not available now",
}

func (s *site) renderFault(c echo.Context, e *wire.Error) {
	title := cmp.Or(faultTitles[e.Status], "This did not work")
	text := e.Message
	if errors.Is(e, wire.ErrRoute) {
		text = "There is nothing at this address."
	}
	httpapi.SetErrorHeaders(c.Response().Header(), e)
	// An error means that the client has gone.
	_ = s.Pages.Render(c, s.fault, e.Status, view{title, s.Shown, text})
}
