package daemon

import (
	"cmp"
	"embed"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/operator"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/phone"
	"github.com/agentmesh/agentmesh/node/owner/web"
)

//go:embed page/*.html
var pageFiles embed.FS

// mountPages mounts the owner's page with the parts for the node, the directory, the links and, if this process runs
// them, the bridges. If notify.page_url is set, a process with a node also mounts the pages for links in notices.
func (p *Process) mountPages() error {
	pages := p.owner.Pages()
	if p.node != nil {
		web.Mount(pages, p.node.OwnerAPI(), setup{p}, p.log)
		if p.cfg.Notify.PageURL != "" {
			p.notices.AddLinks(web.MountDecisions(p.owner, web.DecisionConfig{
				Node: p.node.OwnerAPI(), Records: p.store.Records(), URL: p.cfg.Notify.PageURL, Logger: p.log,
			}).Link)
		}
		if err := mountPhone(p); err != nil {
			return err
		}
	} else if p.registry == nil { // with neither a node nor a directory, the page starts at the links
		pages.Group().GET("/", func(c echo.Context) error { return httpapi.Done(c, "links", "") })
	}
	if p.registry != nil {
		operator.Mount(pages, operator.Config{
			Directory: p.registry, Name: cmp.Or(p.cfg.Site.Name, "Directory"), Mirrored: p.mirror, Alone: p.node == nil, Logger: p.log,
		})
	}
	p.mountLinksPage(pages)
	if wrap := wrapFront(p); wrap != nil && p.registry == nil { // a directory has its own page at /
		p.server.Echo().Match([]string{http.MethodGet, http.MethodHead}, "/", wrap(echo.NotFoundHandler))
	}
	for _, b := range p.bridges {
		if s, ok := b.Service.(bridge.PageMounter); ok && !p.hosting.isElsewhere() {
			s.MountPage(pages)
		}
	}
	return nil
}

// mountPhone lets phones of the owner open the page at the public address, if the configuration says so.
func mountPhone(p *Process) (err error) {
	var gate *phone.Gate
	if p.cfg.OwnerAPI.Phone {
		gate, err = phone.Mount(p.owner, p.server.Echo(), phone.Config{
			Records: p.store.Records(), URL: p.cfg.PublicURL, Name: func() string { return p.node.Card().Name }, Logger: p.log,
		})
		if err != nil {
			return err
		}
	}
	p.mountOperations(
		SetUpPhone.Serve(func(c echo.Context, _ owner.None) (phone.Setup, error) {
			if gate == nil {
				return phone.Setup{}, errNoPhones
			}
			return gate.NewSetup(c.Request().Context(), time.Now())
		}),
		ForgetPhones.Serve(func(c echo.Context, _ owner.None) (owner.None, error) {
			if gate == nil {
				return owner.None{}, errNoPhones
			}
			return owner.None{}, gate.Forget(c.Request().Context(), time.Now())
		}),
	)
	return nil
}

var errNoPhones = owner.Fault(http.StatusConflict, "no phone may open the page", "set owner_api.phone to true, with a public_url that begins with https://, and start serve again")

// The operations of phones with a passkey.
var (
	SetUpPhone   = owner.Endpoint[owner.None, phone.Setup]{Method: http.MethodPost, Path: "/phones", Right: owner.Decide}
	ForgetPhones = owner.Endpoint[owner.None, owner.None]{Method: http.MethodDelete, Path: "/phones", Right: owner.Decide}
)

type linksView struct {
	Links  []bridge.LinkStatus
	Tested *LinkTest // the result of a test, if the owner asked for one
}

func (p *Process) mountLinksPage(pages *httpapi.Pages) {
	page := pages.Template(pageFiles, nil, "page/links.html")
	pages.Add(httpapi.Nav{Path: "links", Title: "Network", Under: "Settings"})
	show := func(c echo.Context, tested *LinkTest) error {
		return pages.Render(c, page, httpapi.View{
			Title: "Links", Topics: []string{"status"}, Self: httpapi.PagePath + "/links",
			Data: linksView{Links: p.links(), Tested: tested},
		})
	}
	pages.Group().GET("/links", func(c echo.Context) error { return show(c, nil) })
	pages.Group().POST("/links", func(c echo.Context) error {
		form, err := httpapi.Form(c, 4<<10)
		if err != nil {
			return err
		}
		result, err := p.testLink(c, form.Get("link"))
		if err != nil {
			return err
		}
		return show(c, &result)
	})
}

func (p *Process) bridgeOfLink(link string) bridge.Service {
	for _, b := range p.bridges {
		for _, l := range b.Links() {
			if l.Name == link {
				return b
			}
		}
	}
	return nil
}
