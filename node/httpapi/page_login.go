package httpapi

import (
	"errors"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
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

// mountPages adds the routes of the shell.
func (o *Owner) mountPages() {
	p := o.pages
	p.group = o.group.Group("/page", p.faults)
	o.echo.GET(PagePath, func(c echo.Context) error { return c.Redirect(http.StatusSeeOther, PagePath+"/") })
	p.group.GET("/login", p.showLogin)
	p.group.POST("/login", p.login)
	p.group.POST("/logout", p.logout)
	p.group.GET("/events", p.stream)
	p.group.GET("/static/:name", p.serveAsset)
	p.group.GET("/*", func(echo.Context) error { return wire.ErrRoute })
	o.group.POST("/sign-in", o.signIn)
}

// isPage says whether the route of a request is part of the page. It looks at what echo routes by, so that no
// spelling of a path is judged as one thing and served as another.
func isPage(path string) bool { return path == PagePath || strings.HasPrefix(path, PagePath+"/") }

// secretParams are names under which people put secrets into URLs.
var secretParams = []string{"token", "access_token", "bearer", "code", "secret", "password", "key"}

// errSecretInURL: what stands in a URL ends up in histories and logs (THREATS 23). The value is not looked at.
var errSecretInURL = &wire.Error{
	Code: wire.InvalidMessage, Status: http.StatusBadRequest,
	Message: "no secret belongs in a URL: send the token as a bearer, or sign in with the form; make a new token if this was the real one",
}

// secretInURL says whether the query has a parameter that is meant to hold a secret.
func secretInURL(u *url.URL) bool {
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

// admit lets a browser in that has signed in. Others see the sign-in form.
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
	if _, ok := p.sessions.of(r); ok {
		return false, nil
	}
	if r.Method != http.MethodGet || path == PagePath+"/events" {
		return false, wire.ErrNoBearer.Because(errors.New("no session"))
	}
	target := loginPath
	if next := selfOf(r); next != PagePath+"/" && next != PagePath {
		target += "?next=" + url.QueryEscape(next)
	}
	if r.Header.Get("HX-Request") != "" { // the live part of a page whose session ended
		c.Response().Header().Set("HX-Redirect", target)
		return true, c.NoContent(http.StatusUnauthorized)
	}
	return true, c.Redirect(http.StatusSeeOther, target)
}

// nextOf is where the browser wanted to go, if that is a page of ours.
func nextOf(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, PagePath+"/") ||
		strings.ContainsAny(s, "\\\r\n") || strings.Contains(u.Path, "//") {
		return PagePath + "/"
	}
	return u.RequestURI()
}

// loginView is what the sign-in form shows.
type loginView struct{ Next string }

func (p *Pages) showLogin(c echo.Context) error {
	said := ""
	if c.QueryParam("did") == "signed-out" {
		said = "You are signed out."
	}
	return p.Render(c, p.loginPage, View{Title: "Sign in", Said: said, Data: loginView{nextOf(c.QueryParam("next"))}})
}

// login takes the token of the data directory or a code of `agentmesh page` from the body of a form.
func (p *Pages) login(c echo.Context) error {
	form, err := Form(c, maxLogin)
	if err != nil {
		return err
	}
	now := time.Now()
	if !p.sessions.redeem(strings.TrimSpace(form.Get("secret")), now) {
		view := View{
			Title: "Sign in", Status: http.StatusForbidden,
			Wrong: "That is neither the token nor a code that is still good. A code works once, for five minutes.",
			Data:  loginView{nextOf(form.Get("next"))},
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
	return c.Redirect(http.StatusSeeOther, nextOf(form.Get("next")))
}

func (p *Pages) logout(c echo.Context) error {
	form, err := Form(c, maxLogin)
	if err != nil {
		return err
	}
	value, _ := p.sessions.of(c.Request())
	if err := p.sessions.end(value, form.Get("all") != ""); err != nil {
		return err
	}
	p.setCookie(c, "", time.Unix(1, 0))
	return Done(c, "login", "signed-out")
}

// setCookie sets a cookie that scripts cannot read and that is sent with requests of our own pages alone. It is not
// marked Secure: the listener is on loopback, and not every browser takes such a cookie from http://127.0.0.1.
func (p *Pages) setCookie(c echo.Context, value string, until time.Time) {
	c.SetCookie(&http.Cookie{
		Name: p.sessions.cookie(), Value: value, Path: PagePath, Expires: until, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

// Form reads the body of a form, at most max bytes. Only what stands in the body counts, nothing of the URL.
func Form(c echo.Context, max int64) (url.Values, error) {
	r := c.Request()
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/x-www-form-urlencoded" {
		return nil, wire.ErrMediaType
	}
	r.Body = http.MaxBytesReader(c.Response().Writer, r.Body, max)
	if err := r.ParseForm(); err != nil {
		if _, over := errors.AsType[*http.MaxBytesError](err); over {
			return nil, wire.ErrTooLarge
		}
		return nil, wire.ErrSyntax.Because(err)
	}
	return r.PostForm, nil
}

// SignIn says where the page is and what signs a browser in.
type SignIn struct {
	URL     string    `json:"url"`
	Code    string    `json:"code"`
	Expires time.Time `json:"expires_at"`
}

// signIn gives out a code for one sign-in. Who asks is the owner: the socket, or the token, says so.
func (o *Owner) signIn(c echo.Context) error {
	addr, err := o.Open()
	if err != nil {
		return err
	}
	code, until := o.pages.sessions.newCode(time.Now())
	return JSON(c, http.StatusOK, SignIn{URL: "http://" + loopbackName(addr) + PagePath + "/", Code: code, Expires: until.UTC()})
}

// loopbackName is the address as a browser on this machine names it.
func loopbackName(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.To4() == nil {
		return net.JoinHostPort("localhost", strings.TrimPrefix(addr.String()[strings.LastIndex(addr.String(), ":"):], ":"))
	}
	return addr.String()
}
