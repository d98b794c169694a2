package mew

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Mount adds what MEW clients call: GET /ws, and /participants*.
func (g *Gateway) Mount(e *echo.Echo) {
	serve := func(c echo.Context) error {
		ctx := context.WithValue(c.Request().Context(), clientKey{}, httpapi.ClientAddr(c))
		g.ServeHTTP(c.Response(), c.Request().WithContext(ctx))
		return nil
	}
	e.GET("/ws", serve)
	e.Any("/participants", serve)
	e.Any("/participants/*", serve)
}

// Operations returns what the owner calls about the spaces that are served here.
func (g *Gateway) Operations() []owner.Operation {
	list := owner.Raw(http.MethodGet, "/mew/spaces", owner.Read, g.ownerSpaces)
	return append(placeOperations("/mew/spaces", g.place), list)
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

func (g *Gateway) ownerSpaces(c echo.Context) error {
	out := owner.List[SpaceSummary]{Items: []SpaceSummary{}}
	for _, s := range g.order {
		st := s.Status()
		sum := SpaceSummary{ID: st.ID, Name: st.Name, Participants: len(st.Participants), Streams: len(st.Streams), Proposals: len(st.Proposals)}
		for _, p := range st.Participants {
			if p.Connected {
				sum.Connected++
			}
		}
		out.Items = append(out.Items, sum)
	}
	return httpapi.JSON(c, http.StatusOK, out)
}

// place finds the space that the path names.
func (g *Gateway) place(c echo.Context) (*place, error) {
	if s := g.Space(c.Param("name")); s != nil {
		return hostedPlace(s), nil
	}
	return nil, fault(http.StatusNotFound, "there is no such space; agentmesh mew spaces names them")
}

// spokenFault is what the owner is told when a space refused.
func spokenFault(err error) error {
	if r, ok := errors.AsType[*Refused](err); ok {
		return &wire.Error{Code: wire.InvalidMessage, Status: r.Status, Message: r.Error()}
	}
	return err
}
