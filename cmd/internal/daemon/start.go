package daemon

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// startView is the data of the page at / for a browser on this machine.
type startView struct {
	Name      string
	Page      string // URL of the owner's page, without a code; "" while its port is closed
	Directory bool
}

// wrapFront returns a middleware for "/" that sends browsers a page with a link to the owner's page. It returns nil if
// the process has no node or is public. Other clients, and searches in the directory, get the usual answer. The link
// has no sign-in code, because any program on this machine may read it.
func wrapFront(p *Process) echo.MiddlewareFunc {
	if p.cfg.Public() || !p.cfg.Has(config.RoleNode) {
		return nil
	}
	pages := httpapi.NewPublicPages(p.server.Echo())
	start := pages.Template(pageFiles, nil, "page/start.html")
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if c.QueryString() != "" || !httpapi.WantsPage(c.Request()) {
				return next(c)
			}
			view := startView{Name: p.node.Card().Name, Directory: p.registry != nil}
			if at := p.owner.Addr(); at != nil {
				view.Page = "http://" + at.String() + httpapi.PagePath + "/"
			}
			c.Response().Header().Set("Vary", "Accept")
			c.Response().Header().Set("Cache-Control", "no-store")
			return pages.Render(c, start, http.StatusOK, view)
		}
	}
}
