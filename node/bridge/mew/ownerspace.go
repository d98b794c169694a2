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
)

// space is a space as the owner of this node sees and uses it, hosted here or joined through a link.
type space interface {
	View() view.Space
	// Watch starts a feed of the envelopes in the space. The caller must close it.
	Watch() *view.Feed
	// Name returns our id in the space: the owner's if the space is hosted, else this node's.
	Name() string
	// Say sends an envelope as the owner, or as this node, and returns the answer.
	Say(ctx context.Context, data []byte) (view.Said, error)
	// Decide approves or rejects a pending proposal, named by its key.
	Decide(ctx context.Context, proposal string, approve bool, reason string) (view.Said, error)
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

// findSpace finds a space of the owner API by its name.
type findSpace func(name string) (*ownerSpace, error)

// serveSpace returns an operation on the space that the path names.
func serveSpace[In, Out any](find findSpace, method, path string, right owner.Right, do func(c echo.Context, s *ownerSpace, in In) (Out, error)) owner.Operation {
	return owner.Endpoint[In, Out]{Method: method, Path: path, Right: right}.Serve(func(c echo.Context, in In) (out Out, err error) {
		s, err := find(c.Param("name"))
		if err != nil {
			return out, err
		}
		return do(c, s, in)
	})
}

// spaceOperations returns the owner's operations on the spaces below path.
func spaceOperations(path string, find findSpace) []owner.Operation {
	return []owner.Operation{
		serveSpace(find, http.MethodGet, path+"/:name", owner.Read, func(_ echo.Context, s *ownerSpace, _ owner.None) (view.Space, error) { return s.View(), nil }),
		owner.Raw(http.MethodGet, path+"/:name/events", owner.Read, func(c echo.Context) error {
			s, err := find(c.Param("name"))
			if err != nil {
				return err
			}
			return ownerEvents(c, s)
		}),
		serveSpace(find, http.MethodPost, path+"/:name/messages", owner.Decide, func(c echo.Context, s *ownerSpace, _ owner.None) (Sent, error) {
			body, err := httpapi.Body(c, envelope.MaxEnvelope)
			if err != nil {
				return Sent{}, err
			}
			return s.send(c.Request().Context(), body)
		}),
		serveSpace(find, http.MethodPost, path+"/:name/proposals/:proposal", owner.Decide, func(c echo.Context, s *ownerSpace, d Decision) (view.Said, error) {
			if d.Approve == nil {
				return view.Said{}, owner.Fault(http.StatusBadRequest, "approve is missing", "")
			}
			return s.Decide(c.Request().Context(), c.Param("proposal"), *d.Approve, d.Reason)
		}),
	}
}

// Decision is the owner's decision about a proposal.
type Decision struct {
	Approve *bool  `json:"approve"`
	Reason  string `json:"reason"`
}

// Sent is the answer to an envelope of the owner, and which participants got it. A space stores nothing for
// participants that are away.
type Sent struct {
	view.Said
	Listeners int      `json:"listeners"`        // other participants that are connected, except our own node
	Absent    []string `json:"absent,omitempty"` // recipients that are not connected
}

// send sends an envelope of the owner.
func (s *ownerSpace) send(ctx context.Context, data []byte) (Sent, error) {
	sent := s.findAudience(data)
	var err error
	if sent.Said, err = s.Say(ctx, data); err == nil && sent.Status == view.AlreadyExists {
		err = view.NewFault(http.StatusConflict, "the space has a participant with this name")
	}
	return sent, err
}

// findAudience returns who would get the envelope now, and which of its recipients are absent.
func (s *ownerSpace) findAudience(data []byte) (sent Sent) {
	e, fault := envelope.Parse(data)
	if fault != nil {
		return sent // the space will refuse the envelope
	}
	connected := make(map[string]bool)
	self := s.Name()
	for _, m := range s.View().Participants {
		if m.Connected && m.ID != self && m.Name != self {
			connected[m.ID], connected[m.Name] = true, true
			if !m.Own {
				sent.Listeners++
			}
		}
	}
	for _, id := range e.To {
		if !connected[id] {
			sent.Absent = append(sent.Absent, id)
		}
	}
	return sent
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
