package daemon

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// startView is the data of the page at / for a browser on this machine.
type startView struct {
	Name      string
	Page      string // URL of the owner's page, without a code; "" while its port is closed
	Directory bool
}

// serveStart answers a browser at / in the local profile with a page that leads to the owner's page. Other clients, and
// searches in the directory, get the usual answer. The page has no sign-in code, because any program on this machine
// may read it.
func serveStart(p *Process) {
	if p.cfg.Public() || p.node == nil {
		return
	}
	pages := httpapi.NewPublicPages(p.edge.Echo())
	start := pages.Template(pageFiles, "page/start.html")
	p.edge.Echo().Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			if r.Method != http.MethodGet || r.URL.Path != "/" || r.URL.RawQuery != "" || !httpapi.WantsPage(r) {
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
	})
}
