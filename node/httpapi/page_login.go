package httpapi

import (
	"errors"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	loginPath  = PagePath + "/login"
	staticPath = PagePath + "/static/"
	maxLogin   = 4 << 10
)

func (o *Owner) mountPages() {
	p := o.pages
	p.group = o.group.Group("/page", p.renderFaults)
	o.echo.GET(PagePath, func(c echo.Context) error { return c.Redirect(http.StatusSeeOther, PagePath+"/") })
	p.group.GET("/login", p.showLogin)
	p.group.POST("/login", p.login)
	p.group.POST("/logout", p.logout)
	p.group.GET("/events", p.stream)
	p.group.GET("/*", func(echo.Context) error { return wire.ErrRoute })
	o.group.POST("/sign-in", o.signIn)
}

// isPage reports whether the route of a request is part of the page. path must be the path by which echo routes.
// Otherwise a variant of a path could be checked as one route and served as another.
func isPage(path string) bool { return path == PagePath || strings.HasPrefix(path, PagePath+"/") }

// secretParams are names under which people put secrets into URLs.
var secretParams = []string{"token", "access_token", "bearer", "code", "secret", "password", "key"}

// errSecretInURL refuses a request with a secret in its URL, because URLs end up in histories and logs (THREATS 23).
// The value of the parameter does not matter.
var errSecretInURL = &wire.Error{
	Code: wire.InvalidMessage, Status: http.StatusBadRequest,
	Message: "do not put a secret into a URL: send the token in the Authorization header, or sign in with the form; if this was the real token, make a new one",
}

func hasSecretInURL(u *url.URL) bool {
	if u.RawQuery == "" {
		return false
	}
	for name := range u.Query() {
		if slices.Contains(secretParams, strings.ToLower(name)) {
			return true
		}
	}
	return false
}

// admit accepts requests that have a session or the token, and sends other browsers to the sign-in form.
func (p *Pages) admit(c echo.Context, token tokenHash) (done bool, err error) {
	r, path := c.Request(), echo.GetPath(c.Request())
	if path == loginPath || strings.HasPrefix(path, staticPath) {
		return false, nil
	}
	if bearer, ok := Bearer(r); ok {
		if token.matches(bearer) {
			return false, nil
		}
		return false, wire.ErrNoBearer.Because(errors.New("wrong owner token"))
	}
	if _, ok := p.sessions.find(r); ok {
		return false, nil
	}
	if r.Method != http.MethodGet || path == PagePath+"/events" {
		return false, wire.ErrNoBearer.Because(errors.New("no session"))
	}
	target := loginPath
	if next := selfURL(r); next != PagePath+"/" && next != PagePath {
		target += "?next=" + url.QueryEscape(next)
	}
	if r.Header.Get("HX-Request") != "" { // a refresh of a page whose session has ended
		c.Response().Header().Set("HX-Redirect", target)
		return true, c.NoContent(http.StatusUnauthorized)
	}
	return true, c.Redirect(http.StatusSeeOther, target)
}

// cleanNext returns the page to open after the sign-in: the start page if s is outside of the owner's page.
func cleanNext(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, PagePath+"/") ||
		strings.ContainsAny(s, "\\\r\n") || strings.Contains(u.Path, "//") {
		return PagePath + "/"
	}
	return u.RequestURI()
}

type loginView struct{ Next string }

func (p *Pages) showLogin(c echo.Context) error {
	result := ""
	if c.QueryParam("did") == "signed-out" {
		result = "You are signed out."
	}
	return p.Render(c, p.loginPage, View{Title: "Sign in", Done: result, Data: loginView{cleanNext(c.QueryParam("next"))}})
}

// login signs in a browser that posts the owner's token or a code of `agentmesh page`.
func (p *Pages) login(c echo.Context) error {
	form, err := Form(c, maxLogin)
	if err != nil {
		return err
	}
	now := time.Now()
	if !p.sessions.redeem(strings.TrimSpace(form.Get("secret")), now) {
		view := View{
			Title: "Sign in", Status: http.StatusForbidden,
			Error: "This is not the token, and not a valid code. A code works once, within five minutes.",
			Data:  loginView{cleanNext(form.Get("next"))},
		}
		if err := p.Render(c, p.loginPage, view); err != nil {
			return err
		}
		return wire.ErrNoBearer.Because(errors.New("wrong sign-in"))
	}
	value, until, err := p.sessions.begin(now)
	if err != nil {
		return err
	}
	p.setCookie(c, value, until)
	return c.Redirect(http.StatusSeeOther, cleanNext(form.Get("next")))
}

func (p *Pages) logout(c echo.Context) error {
	form, err := Form(c, maxLogin)
	if err != nil {
		return err
	}
	value, _ := p.sessions.find(c.Request())
	if err := p.sessions.end(value, form.Get("all") != ""); err != nil {
		return err
	}
	p.setCookie(c, "", time.Unix(1, 0)) // browsers delete an expired cookie
	return Done(c, "login", "signed-out")
}

// setCookie sets a cookie that scripts cannot read and that browsers send only for our own pages. It is not Secure,
// because the listener is on loopback, and some browsers reject a Secure cookie from http://127.0.0.1.
func (p *Pages) setCookie(c echo.Context, value string, until time.Time) {
	c.SetCookie(&http.Cookie{
		Name: p.sessions.cookieName(), Value: value, Path: PagePath, Expires: until, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

// Form reads a form of at most max bytes from the body of a request. It ignores parameters in the URL, and passes the
// values through [UnixBreaks].
func Form(c echo.Context, max int64) (url.Values, error) {
	r := c.Request()
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/x-www-form-urlencoded" {
		return nil, wire.ErrMediaType
	}
	r.Body = http.MaxBytesReader(c.Response().Writer, r.Body, max)
	if err := r.ParseForm(); err != nil {
		if _, isTooLarge := errors.AsType[*http.MaxBytesError](err); isTooLarge {
			return nil, wire.ErrTooLarge
		}
		return nil, wire.ErrSyntax.Because(err)
	}
	UnixBreaks(r.PostForm)
	return r.PostForm, nil
}

// UnixBreaks replaces each CR LF in the values by LF. Browsers send every line break of a text area as CR LF (HTML,
// "constructing the entry list"), and what the owner typed would be signed with them.
func UnixBreaks(form url.Values) {
	for _, values := range form {
		for i, v := range values {
			values[i] = strings.ReplaceAll(v, "\r\n", "\n")
		}
	}
}

// SignIn is the URL of the page with a code that signs a browser in.
type SignIn struct {
	URL     string    `json:"url"`
	Code    string    `json:"code"`
	Expires time.Time `json:"expires_at"`
}

// Link returns the URL that signs a browser in. The code is behind "#", so no server and no log gets it.
func (s SignIn) Link() string { return s.URL + "login#" + s.Code }

// signIn answers with a code. The listener has authenticated the owner, by the socket or the token.
func (o *Owner) signIn(c echo.Context) error {
	in, err := o.SignIn()
	if err != nil {
		return err
	}
	return JSON(c, http.StatusOK, in)
}

// SignIn opens the page as [Owner.Open] does, and makes a code for one sign-in. The previous code becomes invalid.
func (o *Owner) SignIn() (SignIn, error) {
	addr, err := o.Open()
	if err != nil {
		return SignIn{}, err
	}
	code, until := o.pages.sessions.newCode(time.Now())
	return SignIn{URL: "http://" + loopbackName(addr) + PagePath + "/", Code: code, Expires: until.UTC()}, nil
}

// loopbackName returns the host and port of addr for a URL: "localhost" instead of an IPv6 address.
func loopbackName(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.To4() == nil {
		return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}
