package mew

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
)

// Mount adds the routes of g that MEW clients call: GET /ws, and /participants*.
func Mount(e *echo.Echo, g *gateway.Gateway) {
	serve := func(c echo.Context) error {
		r := c.Request()
		g.ServeHTTP(c.Response(), r.WithContext(gateway.WithClient(r.Context(), httpapi.ClientAddr(c))))
		return nil
	}
	e.GET("/ws", serve)
	e.Any("/participants", serve)
	e.Any("/participants/*", serve)
}

// The owner's operations that list spaces.
var (
	ListSpaces = owner.Endpoint[owner.None, owner.List[SpaceSummary]]{Method: http.MethodGet, Path: "/mew/spaces", Right: owner.Read}
	ListLinks  = owner.Endpoint[owner.None, owner.List[LinkSummary]]{Method: http.MethodGet, Path: "/mew/links", Right: owner.Read}
)

// Operations returns the owner's operations on the spaces of g, which may be nil, and on those behind the links of b.
func Operations(g *gateway.Gateway, b *link.Bridge) []owner.Operation {
	const links = "/mew/links"
	findLink := func(name string) (*ownerSpace, error) {
		if l := b.Link(name); l != nil {
			return newJoinedSpace(l), nil
		}
		return nil, view.NewFault(http.StatusNotFound, "there is no such link; run agentmesh mew spaces to list the links")
	}
	list := append(spaceOperations(links, findLink),
		ListLinks.Serve(func(echo.Context, owner.None) (owner.List[LinkSummary], error) {
			return owner.List[LinkSummary]{Items: linkSummaries(b)}, nil
		}),
		serveSpace(findLink, http.MethodPost, links+"/:name/connect", owner.Decide, func(_ echo.Context, s *ownerSpace, _ owner.None) (bridge.LinkStatus, error) {
			s.link.Connect()
			return s.link.Status(), nil
		}),
	)
	if g == nil {
		return list
	}
	list = append(list, spaceOperations("/mew/spaces", func(name string) (*ownerSpace, error) {
		if s := g.Space(name); s != nil {
			return newHostedSpace(s), nil
		}
		return nil, view.NewFault(http.StatusNotFound, "there is no such space; run agentmesh mew spaces to list the spaces")
	})...)
	return append(list, ListSpaces.Serve(func(echo.Context, owner.None) (owner.List[SpaceSummary], error) {
		return owner.List[SpaceSummary]{Items: spaceSummaries(g)}, nil
	}))
}

// SpaceSummary is a space in a list.
type SpaceSummary struct {
	ID           string `json:"id"`
	Name         string `json:"name,omitempty"`
	Participants int    `json:"participants"`
	Connected    int    `json:"connected"`
	Streams      int    `json:"streams"`
	Proposals    int    `json:"proposals"`
}

func spaceSummaries(g *gateway.Gateway) []SpaceSummary {
	out := []SpaceSummary{}
	for _, s := range g.Spaces() {
		v := s.View()
		out = append(out, SpaceSummary{
			ID: v.ID, Name: v.Name, Participants: len(v.Participants), Connected: v.CountPresent(), Streams: len(v.Streams), Proposals: len(v.Proposals),
		})
	}
	return out
}

// LinkSummary is a space in which the node participates.
type LinkSummary struct {
	Link         string           `json:"link"`
	Space        string           `json:"space,omitempty"`
	To           string           `json:"to"`
	State        bridge.LinkState `json:"state"`
	As           string           `json:"as,omitempty"` // the node's id in the space
	Participants int              `json:"participants"`
	Proposals    int              `json:"proposals"`
	Error        string           `json:"error,omitempty"`
}

func linkSummaries(b *link.Bridge) []LinkSummary {
	out := []LinkSummary{}
	for _, l := range b.RemoteLinks() {
		st, v := l.Status(), l.View()
		sum := LinkSummary{
			Link: v.ID, Space: v.Name, To: st.To, State: st.State, Participants: len(v.Participants),
			Proposals: len(v.Proposals), Error: st.Error,
		}
		if st.State == bridge.LinkUp {
			sum.As = l.Name()
		}
		out = append(out, sum)
	}
	return out
}
