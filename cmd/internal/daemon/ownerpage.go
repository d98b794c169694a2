package daemon

import (
	"embed"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner/web"
	"github.com/agentmesh/agentmesh/node/wire"
)

//go:embed page/*.html
var pageFiles embed.FS

// mountPages puts the owner's page together: the node's part, the links, and what bridges add.
func (p *Process) mountPages() {
	pages := p.owner.Pages()
	if p.node != nil {
		web.Mount(pages, p.node.OwnerAPI(), p.log)
	} else { // a directory alone has no owner's agent to show
		pages.Group().GET("/", func(c echo.Context) error { return httpapi.Done(c, "links", "") })
	}
	p.mountLinksPage(pages)
	for _, b := range p.bridges {
		if s, ok := b.(bridge.PageMounter); ok {
			s.MountPage(pages)
		}
	}
}

// linksView is what the page about links shows.
type linksView struct {
	Links  []bridge.LinkStatus
	Tested *LinkTest // the outcome of a test that was asked for
}

func (p *Process) mountLinksPage(pages *httpapi.Pages) {
	page := pages.Template(pageFiles, "page/links.html")
	pages.Add(httpapi.Nav{Path: "links", Title: "Links"})
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
		b := p.bridgeOf(form.Get("link"))
		if b == nil {
			return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such link"}
		}
		if err := httpapi.KeepOpen(c, linkTestTime); err != nil {
			return err
		}
		result := testLink(c.Request().Context(), b, form.Get("link"))
		return show(c, &result)
	})
}

// bridgeOf returns the bridge that has the link, nil where none does.
func (p *Process) bridgeOf(link string) bridge.Service {
	for _, b := range p.bridges {
		for _, l := range b.Links() {
			if l.Name == link {
				return b
			}
		}
	}
	return nil
}
