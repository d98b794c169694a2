package mew

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// place is a space as its owner sees it and acts in it, on the page and by the owner API: one that is hosted here, or
// one behind a link.
type place struct {
	Path   string // below the entry of the page
	Title  string
	Hosted bool
	tail   tail
	status func() SpaceStatus
	// say sends an envelope as the owner, or as this node, and decide a word on a proposal. They return what is
	// answered; a refusal is a *[Refused].
	say    func(ctx context.Context, data []byte) (status int, body []byte, err error)
	decide func(ctx context.Context, proposal string, approve bool, reason string) (status int, body []byte, err error)
	watch  func() *Feed
	self   func() string // id of the owner, or of this node

	// Of a link.
	link    func() bridge.LinkStatus
	connect func()
}

func hostedPlace(s *Space) *place {
	return &place{
		Path: "mew/space/" + url.PathEscape(s.id), Title: s.id, Hosted: true, status: s.Status, watch: s.Watch,
		self: func() string { return OperatorName },
		say:  func(_ context.Context, data []byte) (int, []byte, error) { return s.Say(data) },
		decide: func(_ context.Context, id string, approve bool, reason string) (int, []byte, error) {
			return s.Decide(id, approve, reason)
		},
	}
}

func linkPlace(l *link) *place {
	return &place{
		Path: "mew/link/" + url.PathEscape(l.cfg.Name), Title: l.cfg.Name, status: l.space, watch: l.watch, self: l.name,
		say: func(ctx context.Context, data []byte) (int, []byte, error) {
			return accepted(l.speak(ctx, data))
		},
		decide: func(ctx context.Context, id string, approve bool, reason string) (int, []byte, error) {
			sent, err := l.decide(ctx, id, approve, envelope.ToPrintable(reason, 200))
			return accepted(sent, wire.Value{}, err)
		},
		link: l.status, connect: l.connect,
	}
}

// accepted is what a space of others answers: nothing but that it took the envelope, or what it says of an invite.
func accepted(id string, answer wire.Value, err error) (int, []byte, error) {
	if err != nil {
		return 0, nil, err
	}
	if answer.Kind() != wire.Object {
		answer = wire.Obj(wire.TextField("status", "accepted"))
	}
	return http.StatusOK, answer.With("id", wire.Text(id)).JSON(), nil
}

// placeOperations returns what the owner calls about the spaces below a path, which find finds by their name.
func placeOperations(below string, find func(c echo.Context) (*place, error)) []owner.Operation {
	with := func(serve func(c echo.Context, p *place) error) echo.HandlerFunc {
		return func(c echo.Context) error {
			p, err := find(c)
			if err != nil {
				return err
			}
			return serve(c, p)
		}
	}
	return []owner.Operation{
		owner.Raw(http.MethodGet, below+"/:name", owner.Read, with(func(c echo.Context, p *place) error { return httpapi.JSON(c, http.StatusOK, p.status()) })),
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
	return spoken(c)(there.told(p.say(c.Request().Context(), body)))
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
	for _, m := range p.status().Participants {
		if m.Connected && m.ID != p.self() && m.Name != p.self() {
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
	return spoken(c)(p.decide(c.Request().Context(), c.Param("proposal"), d.Approve, d.Reason))
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
			return spokenFault(err)
		}
		return httpapi.Raw(c, status, body)
	}
}

// ownerEvents streams the envelopes of a space as they pass, as server-sent events: "envelope" with one as data,
// "lost" with a number where the reader was too slow.
func ownerEvents(c echo.Context, p *place) error {
	feed := p.watch()
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
