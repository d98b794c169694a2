// Package operator serves the directory's part of the owner's page and of the owner API: cards, reports, bans, invite
// codes, changes and numbers. Page and API call the same methods of [directory.Registry].
package operator

import (
	"context"
	"embed"
	"log/slog"
	"net/url"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

//go:embed page/*.html
var pageFiles embed.FS

// Config configures the pages.
type Config struct {
	Directory *directory.Registry
	Name      string // of the directory
	Mirrored  string // URL of the directory that this one mirrors, or ""
	Alone     bool   // the process has no node: / leads to these pages, and the navigation begins with them
	Logger    *slog.Logger
}

type pages struct {
	Config
	dir   *directory.Registry
	shell *httpapi.Pages

	overview, cards, reports, bans, invites, changes *httpapi.PageTemplate
}

const (
	byPage        = "page"           // the name of the page in the audit log
	maxForm       = 64 << 10         // a ban may contain a whole public key
	listSize      = 25               // entries of a list
	maxCount      = httpapi.MaxCount // reports that are counted for the navigation
	maxInviteDays = 365
)

// pageFuncs are the methods that the templates call.
var pageFuncs = map[string]any{"usesLeft": credential.Code.Left}

// Mount adds the pages.
func Mount(shell *httpapi.Pages, cfg Config) {
	read := func(name string) *httpapi.PageTemplate {
		return shell.Template(pageFiles, pageFuncs, "page/"+name+".html")
	}
	p := &pages{
		Config: cfg, dir: cfg.Directory, shell: shell, overview: read("overview"), cards: read("cards"), reports: read("reports"),
		bans: read("bans"), invites: read("invites"), changes: read("changes"),
	}
	under := "Directory"
	if cfg.Alone {
		under = ""
		shell.SetBar(func(ctx context.Context) httpapi.Bar { return httpapi.Bar{Name: cfg.Name} })
		shell.Group().GET("/", func(c echo.Context) error { return httpapi.Done(c, "directory", "") })
	}
	shell.Add(
		httpapi.Nav{Path: "directory", Title: "Directory"},
		httpapi.Nav{Path: "directory/cards", Title: "Cards", Under: under},
		httpapi.Nav{Path: "directory/reports", Title: "Reports", Under: under, Count: p.countReports},
		httpapi.Nav{Path: "directory/bans", Title: "Bans", Under: under},
		httpapi.Nav{Path: "directory/invites", Title: "Invite codes", Under: under},
		httpapi.Nav{Path: "directory/changes", Title: "Changes", Under: under},
	)
	g := shell.Group()
	g.GET("/directory", p.showOverview)
	g.GET("/directory/cards", p.showCards)
	g.POST("/directory/cards", handleForm(p.changeCard))
	g.GET("/directory/reports", p.showReports)
	g.POST("/directory/reports", handleForm(p.dismiss))
	g.GET("/directory/bans", p.showBans)
	g.POST("/directory/bans", handleForm(p.changeBan))
	g.GET("/directory/invites", p.showInvites)
	g.POST("/directory/invites", handleForm(p.changeInvite))
	g.GET("/directory/changes", p.showChanges)
}

// doneMessages are the results of forms, by the value of "did" in the URL of the next page.
var doneMessages = map[string]string{
	"removed": "The card was removed. Its owner may register again, unless you ban it.",
	"handed":  "The owner can take the card over with its key, until the card is next registered or renewed.",
	"banned":  "Banned. The cards that match were removed.", "lifted": "The ban was lifted.",
	"dismissed": "The report was deleted.", "revoked": "The code was revoked.",
}

func (p *pages) render(c echo.Context, page *httpapi.PageTemplate, title string, data any) error {
	return p.shell.Render(c, page, httpapi.View{Title: title, Done: doneMessages[c.QueryParam("did")], Data: data})
}

func (p *pages) countReports(ctx context.Context) int {
	list, _, err := p.dir.Reports(ctx, "", "", maxCount)
	if err != nil {
		p.Logger.Warn("cannot count the reports", "err", err)
	}
	return len(list)
}

type overview struct {
	directory.State
	Mirrored string
	Reports  int
	MailSize string
}

func (p *pages) showOverview(c echo.Context) error {
	state, err := directory.ReadState(c.Request().Context(), p.dir)
	if err != nil {
		return err
	}
	o := overview{State: state, Mirrored: p.Mirrored, Reports: p.countReports(c.Request().Context()), MailSize: formatBytes(state.MailBytes)}
	return p.shell.Render(c, p.overview, httpapi.View{Title: "Directory", Data: o})
}

func formatBytes(n int64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB"}
	i := 0
	for ; n >= 10<<10 && i < len(units)-1; i++ {
		n >>= 10
	}
	return strconv.FormatInt(n, 10) + " " + units[i]
}

type cardsView struct {
	directory.OperatorCardPage
	Query, Next string
}

func (p *pages) showCards(c echo.Context) error {
	text := c.QueryParam("q")
	q := directory.Query{Text: text, Cursor: c.QueryParam("cursor"), Limit: listSize}
	found, err := directory.ListCards(c.Request().Context(), p.dir, q)
	if err != nil {
		return err
	}
	v := cardsView{OperatorCardPage: found, Query: text}
	if found.Cursor != "" {
		v.Next = "?" + url.Values{"q": {text}, "cursor": {found.Cursor}}.Encode()
	}
	return p.render(c, p.cards, "Cards", v)
}

// handleForm returns the handler that reads a form and passes it to process.
func handleForm(process func(echo.Context, url.Values) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		form, err := httpapi.Form(c, maxForm)
		if err != nil {
			return err
		}
		return process(c, form)
	}
}

// finish answers a form with err, or with a redirect to the page at path, which shows doneMessages[did].
func finish(c echo.Context, err error, path, did string) error {
	if err != nil {
		return err
	}
	return httpapi.Done(c, path, did)
}

func (p *pages) changeCard(c echo.Context, form url.Values) error {
	ctx, id, reason := c.Request().Context(), wire.AgentID(form.Get("agent")), form.Get("reason")
	switch form.Get("action") {
	case "remove":
		return finish(c, p.dir.Remove(ctx, id, reason, byPage), "directory/cards", "removed")
	case "handover":
		return finish(c, p.dir.HandOver(ctx, id, reason, byPage), "directory/cards", "handed")
	case "ban":
		return p.ban(c, form.Get("what"), reason)
	}
	return wire.ErrQuery
}

func (p *pages) ban(c echo.Context, what, reason string) error {
	_, err := operations{p.dir}.ban(c.Request().Context(), "", Order{what, reason}, byPage)
	return finish(c, err, "directory/bans", "banned")
}

// namedReport is a report with the name on the reported card.
type namedReport struct {
	directory.Report
	Name string
}

func (p *pages) showReports(c echo.Context) error {
	list, next, err := p.dir.Reports(c.Request().Context(), "", c.QueryParam("after"), listSize)
	if err != nil {
		return err
	}
	named := make([]namedReport, len(list))
	for i, report := range list {
		named[i] = namedReport{report, p.dir.NameOf(c.Request().Context(), report.AgentID)}
	}
	return p.render(c, p.reports, "Reports", owner.Page(named, next))
}

func (p *pages) dismiss(c echo.Context, form url.Values) error {
	return finish(c, p.dir.DismissReport(c.Request().Context(), form.Get("report")), "directory/reports", "dismissed")
}

func (p *pages) showBans(c echo.Context) error {
	list, next, err := p.dir.Bans().List(c.Request().Context(), c.QueryParam("after"), listSize)
	if err != nil {
		return err
	}
	return p.render(c, p.bans, "Bans", owner.Page(list, next))
}

func (p *pages) changeBan(c echo.Context, form url.Values) error {
	if form.Get("action") == "ban" {
		return p.ban(c, form.Get("what"), form.Get("reason"))
	}
	ban := moderation.Ban{Kind: moderation.BanKind(form.Get("kind")), Value: form.Get("value")}
	return finish(c, p.dir.Bans().Lift(c.Request().Context(), ban, form.Get("reason"), byPage), "directory/bans", "lifted")
}

type invitesView struct {
	Mode    directory.Mode
	Tokens  []Token
	Next    string
	Link    string // to join, with a new code, which only this response shows
	QR      *site.QR
	Expires time.Time
	Uses    int
}

func (p *pages) showInvites(c echo.Context) error { return p.listInvites(c, invitesView{}) }

func (p *pages) listInvites(c echo.Context, v invitesView) error {
	state, err := directory.ReadState(c.Request().Context(), p.dir)
	if err != nil {
		return err
	}
	v.Mode = state.Mode
	if v.Tokens, v.Next, err = p.dir.Admission().Tokens(c.Request().Context(), c.QueryParam("after"), listSize); err != nil {
		return err
	}
	return p.render(c, p.invites, "Invite codes", v)
}

func (p *pages) changeInvite(c echo.Context, form url.Values) error {
	if form.Get("action") == "revoke" {
		return finish(c, p.dir.Admission().RevokeToken(c.Request().Context(), form.Get("code"), byPage), "directory/invites", "revoked")
	}
	days, err := strconv.Atoi(form.Get("days"))
	if err != nil || days < 1 || days > maxInviteDays {
		return wire.ErrQuery.At("days must be 1 to 365")
	}
	uses, err := strconv.Atoi(form.Get("uses"))
	if err != nil || uses < 1 {
		return wire.ErrQuery.At("uses must be 1 to 1000")
	}
	code, t, err := p.dir.Admission().IssueToken(c.Request().Context(), form.Get("label"), uses, time.Now().AddDate(0, 0, days), byPage)
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	link := p.dir.JoinLink(code)
	return p.listInvites(c, invitesView{Link: link, QR: site.NewQR(link), Expires: t.Expires, Uses: t.Uses})
}

type changesView struct{ Changes []site.Change }

func (p *pages) showChanges(c echo.Context) error {
	list, err := directory.LatestChanges(c.Request().Context(), p.dir, listSize)
	if err != nil {
		return err
	}
	return p.render(c, p.changes, "Changes", changesView{list})
}
