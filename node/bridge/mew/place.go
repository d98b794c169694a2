package mew

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// space is a space as its owner sees it and acts in it, hosted here or behind a link.
type space interface {
	View() view.Space
	// Watch starts a feed of the envelopes that pass. It must be closed.
	Watch() *view.Feed
	// Name returns the id of the owner, or of this node, in the space.
	Name() string
	// Say sends an envelope as the owner, or as this node, and returns what is answered.
	Say(ctx context.Context, data []byte) (status int, body []byte, err error)
	// Decide approves or rejects a proposal that waits, named by its key.
	Decide(ctx context.Context, proposal string, approve bool, reason string) (status int, body []byte, err error)
}

// place is a space on the page and in the owner API.
type place struct {
	space
	Path   string // below the entry of the page
	Title  string
	Hosted bool
	link   *link.Link // nil for a hosted space
	tail   tail
}

func newHostedPlace(s *gateway.Space) *place {
	return &place{space: s, Path: "mew/space/" + url.PathEscape(s.ID()), Title: s.ID(), Hosted: true}
}

func newLinkPlace(l *link.Link) *place {
	name := l.Status().Name
	return &place{space: l, Path: "mew/link/" + url.PathEscape(name), Title: name, link: l}
}

// placeOperations returns what the owner calls about the spaces below a path, which find finds by their name.
func placeOperations(below string, find func(name string) (*place, error)) []owner.Operation {
	with := func(serve func(c echo.Context, p *place) error) echo.HandlerFunc {
		return func(c echo.Context) error {
			p, err := find(c.Param("name"))
			if err != nil {
				return err
			}
			return serve(c, p)
		}
	}
	return []owner.Operation{
		owner.Raw(http.MethodGet, below+"/:name", owner.Read, with(func(c echo.Context, p *place) error { return httpapi.JSON(c, http.StatusOK, p.View()) })),
		owner.Raw(http.MethodGet, below+"/:name/events", owner.Read, with(ownerEvents)),
		owner.Raw(http.MethodPost, below+"/:name/messages", owner.Send, with(ownerSay)),
		owner.Raw(http.MethodPost, below+"/:name/proposals/:proposal", owner.Decide, with(ownerDecide)),
	}
}

func ownerSay(c echo.Context, p *place) error {
	body, err := httpapi.Body(c, envelope.MaxEnvelope)
	if err != nil {
		return err
	}
	there := p.audience(body)
	return spoken(c)(there.told(p.Say(c.Request().Context(), body)))
}

// audience is who is connected to a space when something is said there, which keeps nothing for those who are not.
type audience struct {
	listeners int      // others that are connected
	absent    []string // those named in to that are not
}

func (p *place) audience(data []byte) audience {
	var a audience
	e, fault := envelope.Parse(data)
	if fault != nil {
		return a // the space will say what is wrong
	}
	connected := make(map[string]bool)
	self := p.Name()
	for _, m := range p.View().Participants {
		if m.Connected && m.ID != self && m.Name != self {
			connected[m.ID], connected[m.Name] = true, true
			a.listeners++
		}
	}
	for _, id := range e.To {
		if !connected[id] {
			a.absent = append(a.absent, id)
		}
	}
	return a
}

// told adds the audience to what a space answered.
func (a audience) told(status int, body []byte, err error) (int, []byte, error) {
	v, fault := wire.ParseForeign(body, envelope.MaxDepth, envelope.MaxValues)
	if err != nil || fault != nil || v.Kind() != wire.Object {
		return status, body, err
	}
	v = v.With("listeners", wire.Int(int64(a.listeners)))
	if len(a.absent) > 0 {
		v = v.With("absent", wire.Texts(a.absent))
	}
	return status, v.JSON(), nil
}

// ownerDecision is what the owner says about a proposal.
type ownerDecision struct {
	Approve bool   `json:"approve"`
	Reason  string `json:"reason"`
}

func ownerDecide(c echo.Context, p *place) error {
	var d ownerDecision
	if err := readOwner(c, &d); err != nil {
		return err
	}
	return spoken(c)(p.Decide(c.Request().Context(), c.Param("proposal"), d.Approve, d.Reason))
}

func readOwner(c echo.Context, into any) error {
	body, err := httpapi.Body(c, 4<<10)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return wire.ErrSyntax.Because(err)
	}
	return nil
}

// spoken answers with what the space answered.
func spoken(c echo.Context) func(status int, body []byte, err error) error {
	return func(status int, body []byte, err error) error {
		if err != nil {
			return err
		}
		return httpapi.Raw(c, status, body)
	}
}

// ownerEvents streams the envelopes of a space as they pass, as server-sent events: "envelope" with one as data,
// "lost" with a number where the reader was too slow.
func ownerEvents(c echo.Context, p *place) error {
	feed := p.Watch()
	defer feed.Close()
	events := httpapi.NewEventStream(c)
	err := events.Beat()
	alive := time.NewTicker(httpapi.StreamBeat)
	defer alive.Stop()
	for err == nil {
		select {
		case <-c.Request().Context().Done():
			return nil
		case raw := <-feed.C():
			list := []httpapi.StreamEvent{{Name: "envelope", Data: string(raw)}}
			if n := feed.Lost(); n > 0 {
				list = append([]httpapi.StreamEvent{{Name: "lost", Data: strconv.Itoa(int(n))}}, list...)
			}
			err = events.Send(list...)
		case <-alive.C:
			err = events.Beat()
		}
	}
	return nil // the reader has gone
}
