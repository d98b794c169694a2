package mew

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
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

// MountOwner adds what the owner calls, below /owner/mew.
func (g *Gateway) MountOwner(o *echo.Group) {
	o = o.Group("/mew")
	o.GET("/spaces", g.ownerSpaces)
	o.GET("/spaces/:space", g.ownerSpace)
	o.GET("/spaces/:space/events", g.ownerEvents)
	o.POST("/spaces/:space/messages", g.ownerSay)
	o.POST("/spaces/:space/proposals/:proposal", g.ownerDecide)
}

// spaceList is an answer with several items, as everywhere in the owner API.
type spaceList struct {
	Items []SpaceSummary `json:"items"`
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
	out := spaceList{Items: []SpaceSummary{}}
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

// spaceOf finds the space that the path names.
func (g *Gateway) spaceOf(c echo.Context) (*Space, error) {
	if s := g.Space(c.Param("space")); s != nil {
		return s, nil
	}
	return nil, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such space; agentmesh mew spaces names them"}
}

func (g *Gateway) ownerSpace(c echo.Context) error {
	s, err := g.spaceOf(c)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, s.Status())
}

// ownerSay sends an envelope as the owner.
func (g *Gateway) ownerSay(c echo.Context) error {
	s, err := g.spaceOf(c)
	if err != nil {
		return err
	}
	body, err := httpapi.Body(c, MaxEnvelope)
	if err != nil {
		return err
	}
	return spoken(c)(s.Say(body))
}

// ownerDecision is what the owner says about a proposal.
type ownerDecision struct {
	Approve bool   `json:"approve"`
	Reason  string `json:"reason"`
}

func (g *Gateway) ownerDecide(c echo.Context) error {
	s, err := g.spaceOf(c)
	if err != nil {
		return err
	}
	body, err := httpapi.Body(c, 4<<10)
	if err != nil {
		return err
	}
	var d ownerDecision
	if err := json.Unmarshal(body, &d); err != nil {
		return wire.ErrSyntax.Because(err)
	}
	return spoken(c)(s.Decide(c.Param("proposal"), d.Approve, d.Reason))
}

// spoken answers with what the space answered.
func spoken(c echo.Context) func(status int, body []byte, err error) error {
	return func(status int, body []byte, err error) error {
		if err != nil {
			return spokenFault(err)
		}
		return httpapi.Raw(c, status, body)
	}
}

const (
	feedAlive = 20 * time.Second
	feedWrite = 45 * time.Second
)

// ownerEvents streams the envelopes of a space as they pass, as server-sent events: "envelope" with one as data,
// "lost" with a number where the reader was too slow.
func (g *Gateway) ownerEvents(c echo.Context) error {
	s, err := g.spaceOf(c)
	if err != nil {
		return err
	}
	feed := s.Watch()
	defer feed.Close()
	return streamFeed(c, feed)
}

// envelopeFeed is a [Feed] or a [LinkFeed].
type envelopeFeed interface {
	C() <-chan []byte
	Lost() int64
}

func streamFeed(c echo.Context, feed envelopeFeed) error {
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
	c.Response().WriteHeader(http.StatusOK)
	alive := time.NewTicker(feedAlive)
	defer alive.Stop()
	line := ": watching\n\n"
	for {
		if feedSay(c, line) != nil {
			return nil // the reader has gone
		}
		select {
		case <-c.Request().Context().Done():
			return nil
		case raw := <-feed.C():
			line = ""
			if n := feed.Lost(); n > 0 {
				line = "event: lost\ndata: " + itoa(int(n)) + "\n\n"
			}
			line += "event: envelope\ndata: " + string(raw) + "\n\n"
		case <-alive.C:
			line = ":\n\n"
		}
	}
}

func feedSay(c echo.Context, line string) error {
	if err := httpapi.KeepOpen(c, feedWrite); err != nil {
		return err
	}
	if _, err := io.WriteString(c.Response(), line); err != nil {
		return err
	}
	return http.NewResponseController(c.Response()).Flush()
}

// spokenFault is what the owner is told when a space refused.
func spokenFault(err error) error {
	if r, ok := errors.AsType[*Refused](err); ok {
		return &wire.Error{Code: wire.InvalidMessage, Status: r.Status, Message: r.Error()}
	}
	return err
}
