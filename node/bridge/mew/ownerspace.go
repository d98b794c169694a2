package mew

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// space is a space as the owner of this node sees and uses it, hosted here or joined through a link.
type space interface {
	View() view.Space
	// Watch starts a feed of the envelopes in the space. The caller must close it.
	Watch() *view.Feed
	// Name returns our id in the space: the owner's if the space is hosted, else this node's.
	Name() string
	// Say sends an envelope as the owner, or as this node, and returns the answer.
	Say(ctx context.Context, data []byte) (status int, body []byte, err error)
	// Decide approves or rejects a pending proposal, named by its key.
	Decide(ctx context.Context, proposal string, approve bool, reason string) (status int, body []byte, err error)
}

// ownerSpace is a space on the page and in the owner API.
type ownerSpace struct {
	space
	Path   string // below the owner's page: mew/space/NAME or mew/link/NAME
	Title  string
	Hosted bool       // by this node
	link   *link.Link // nil for a hosted space
	tail   tail       // the latest envelopes, for the page
}

func newHostedSpace(s *gateway.Space) *ownerSpace {
	return &ownerSpace{space: s, Path: "mew/space/" + url.PathEscape(s.ID()), Title: s.ID(), Hosted: true}
}

func newJoinedSpace(l *link.Link) *ownerSpace {
	name := l.Status().Name
	return &ownerSpace{space: l, Path: "mew/link/" + url.PathEscape(name), Title: name, link: l}
}

// withSpace returns a handler that calls serve with the space that the path names.
func withSpace(find func(name string) (*ownerSpace, error), serve func(c echo.Context, s *ownerSpace) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		s, err := find(c.Param("name"))
		if err != nil {
			return err
		}
		return serve(c, s)
	}
}

// spaceOperations returns the owner's operations on the spaces below path. find returns a space by name.
func spaceOperations(path string, find func(name string) (*ownerSpace, error)) []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodGet, path+"/:name", owner.Read, withSpace(find, func(c echo.Context, s *ownerSpace) error { return httpapi.JSON(c, http.StatusOK, s.View()) })),
		owner.Raw(http.MethodGet, path+"/:name/events", owner.Read, withSpace(find, ownerEvents)),
		owner.Raw(http.MethodPost, path+"/:name/messages", owner.Decide, withSpace(find, ownerSay)),
		owner.Raw(http.MethodPost, path+"/:name/proposals/:proposal", owner.Decide, withSpace(find, ownerDecide)),
	}
}

func ownerSay(c echo.Context, s *ownerSpace) error {
	body, err := httpapi.Body(c, envelope.MaxEnvelope)
	if err != nil {
		return err
	}
	status, answer, err := s.findAudience(body).addTo(s.Say(c.Request().Context(), body))
	return forwardAnswer(c, status, answer, err)
}

// audience describes which participants get an envelope that the owner sends now. A space stores nothing
// for participants that are away.
type audience struct {
	listeners int      // other participants that are connected, except our own node
	absent    []string // recipients that are not connected
}

// findAudience returns who would get the envelope now, and which of its recipients are absent.
func (s *ownerSpace) findAudience(data []byte) audience {
	var a audience
	e, fault := envelope.Parse(data)
	if fault != nil {
		return a // the space will refuse the envelope
	}
	connected := make(map[string]bool)
	self := s.Name()
	for _, m := range s.View().Participants {
		if m.Connected && m.ID != self && m.Name != self {
			connected[m.ID], connected[m.Name] = true, true
			if !m.Own {
				a.listeners++
			}
		}
	}
	for _, id := range e.To {
		if !connected[id] {
			a.absent = append(a.absent, id)
		}
	}
	return a
}

// addTo adds the audience to the answer of a space.
func (a audience) addTo(status int, body []byte, err error) (int, []byte, error) {
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

// ownerDecision is the owner's decision about a proposal.
type ownerDecision struct {
	Approve *bool  `json:"approve"`
	Reason  string `json:"reason"`
}

func ownerDecide(c echo.Context, s *ownerSpace) error {
	var d ownerDecision
	if err := owner.ReadRequest(c, &d); err != nil {
		return err
	}
	if d.Approve == nil {
		return owner.Fault(http.StatusBadRequest, "approve is missing", "")
	}
	status, answer, err := s.Decide(c.Request().Context(), c.Param("proposal"), *d.Approve, d.Reason)
	return forwardAnswer(c, status, answer, err)
}

// forwardAnswer answers a request with the answer of a space.
func forwardAnswer(c echo.Context, status int, body []byte, err error) error {
	if err != nil {
		return err
	}
	return httpapi.Raw(c, status, body)
}

// ownerEvents streams the envelopes of a space as server-sent events: "envelope" with an envelope as data, and "lost"
// with the number of envelopes that the reader missed because it was too slow.
func ownerEvents(c echo.Context, s *ownerSpace) error {
	feed := s.Watch()
	defer feed.Close()
	events := httpapi.NewEventStream(c)
	if events.Beat() != nil {
		return nil // the reader is gone
	}
	httpapi.Follow(events, feed.C(), func(raw []byte) error {
		list := []httpapi.StreamEvent{{Name: "envelope", Data: string(raw)}}
		if n := feed.Lost(); n > 0 {
			list = append([]httpapi.StreamEvent{{Name: "lost", Data: strconv.Itoa(int(n))}}, list...)
		}
		return events.Send(list...)
	})
	return nil
}
