package mess

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Links says how the links stand.
func (b *Bridge) Links() []bridge.LinkStatus {
	out := []bridge.LinkStatus{}
	for _, l := range b.links {
		l.mu.Lock()
		s := l.status
		s.Peers = len(l.peers)
		l.mu.Unlock()
		out = append(out, s)
	}
	return out
}

// Test connects a link as if for the first time.
func (b *Bridge) Test(ctx context.Context, name string) error {
	for _, l := range b.links {
		if l.cfg.Name == name {
			return l.remote.probe(ctx)
		}
	}
	return fmt.Errorf("there is no link %s", name)
}

// mountLinks lets the owner hand a thread to a link.
func (b *Bridge) mountLinks(g *echo.Group) {
	g.POST("/mess/send/:ref/:link", func(c echo.Context) error {
		i := slices.IndexFunc(b.links, func(l *link) bool { return l.cfg.Name == c.Param("link") })
		if i < 0 {
			return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such link"}
		}
		ctx := c.Request().Context()
		if _, err := b.x.Thread(ctx, Owner("cli"), c.Param("ref")); err != nil {
			return err
		}
		address := bridge.Address{Kind: Kind, Link: c.Param("link"), Peer: exchangeID}
		if err := b.offerTo(ctx, c.Param("ref"), string(address.Pseudonym()), address.String(), nil); err != nil {
			return err
		}
		return httpapi.JSON(c, http.StatusOK, sentTo{Ref: c.Param("ref"), To: address.String()})
	})
}

type sentTo struct {
	Ref string `json:"ref"`
	To  string `json:"to"`
}
