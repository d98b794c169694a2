package mew

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// MountOwner adds what the owner calls about the spaces that the node takes part in, below /owner/mew/links.
func (b *Bridge) MountOwner(o *echo.Group) {
	o = o.Group("/mew/links")
	o.GET("", b.ownerLinks)
	o.GET("/:link", b.ownerLink)
	o.GET("/:link/events", b.ownerEvents)
	o.POST("/:link/messages", b.ownerSay)
	o.POST("/:link/proposals/:proposal", b.ownerDecide)
	o.POST("/:link/connect", b.ownerConnect)
	o.POST("/:link/conversations", b.ownerBring)
	o.GET("/:link/conversations", b.ownerBrought)
}

// linkList is an answer with several items.
type linkList struct {
	Items []LinkSummary `json:"items"`
}

// LinkSummary is a space that the node takes part in.
type LinkSummary struct {
	Link         string           `json:"link"`
	Space        string           `json:"space,omitempty"`
	To           string           `json:"to"`
	State        bridge.LinkState `json:"state"`
	As           string           `json:"as,omitempty"` // the node's id there
	Participants int              `json:"participants"`
	Streams      int              `json:"streams"`
	Proposals    int              `json:"proposals"`
	Error        string           `json:"error,omitempty"`
}

func (b *Bridge) summaries() []LinkSummary {
	out := []LinkSummary{}
	for _, l := range b.links {
		st, s := l.status(), l.space()
		sum := LinkSummary{
			Link: l.cfg.Name, Space: l.cfg.Space, To: st.To, State: st.State, Participants: len(s.Participants),
			Streams: len(s.Streams), Proposals: len(s.Proposals), Error: st.Error,
		}
		if st.State == bridge.LinkUp {
			sum.As = l.name()
		}
		out = append(out, sum)
	}
	return out
}

func (b *Bridge) ownerLinks(c echo.Context) error {
	return httpapi.JSON(c, http.StatusOK, linkList{Items: b.summaries()})
}

// linkIn finds the link that the path names.
func (b *Bridge) linkIn(c echo.Context) (*link, error) {
	if l := b.link(c.Param("link")); l != nil {
		return l, nil
	}
	return nil, fault(http.StatusNotFound, "there is no such link; agentmesh mew spaces names them")
}

func (b *Bridge) ownerLink(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, l.space())
}

// posted is what an envelope of the owner's became.
type posted struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

func answered(c echo.Context, id string, err error) error {
	if r, ok := errors.AsType[*Refused](err); ok {
		return fault(r.Status, r.Error())
	}
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, posted{ID: id, Status: "accepted"})
}

func (b *Bridge) ownerSay(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	body, err := httpapi.Body(c, MaxEnvelope)
	if err != nil {
		return err
	}
	id, answer, err := l.speakFor(c.Request().Context(), body)
	if err != nil || answer.Kind() != wire.Object {
		return answered(c, id, err)
	}
	return httpapi.JSON(c, http.StatusOK, answer.With("id", wire.Text(id)))
}

func (b *Bridge) ownerDecide(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	var d ownerDecision
	if err := readOwner(c, &d); err != nil {
		return err
	}
	id, err := l.decide(c.Request().Context(), c.Param("proposal"), d.Approve, printable(d.Reason, 200))
	return answered(c, id, err)
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

func (b *Bridge) ownerConnect(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	l.connect()
	return httpapi.JSON(c, http.StatusOK, l.status())
}

// ownerBringing names a conversation that a space is to see, or no longer.
type ownerBringing struct {
	Peer         string `json:"peer"`
	Conversation string `json:"conversation_id"`
	Stop         bool   `json:"stop"`
}

func (b *Bridge) ownerBring(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	var in ownerBringing
	if err := readOwner(c, &in); err != nil {
		return err
	}
	if err := l.bring(c.Request().Context(), store.ConvKey{Peer: in.Peer, ID: in.Conversation}, !in.Stop); err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, in)
}

// broughtList is what a space sees of the mesh.
type broughtList struct {
	Items []brought `json:"items"`
}

func (b *Bridge) ownerBrought(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	all, err := l.allBrought(c.Request().Context())
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, broughtList{Items: append([]brought{}, slices.Clone(all)...)})
}

// ownerEvents streams the envelopes of the space as they pass, in the form of those of a hosted space.
func (b *Bridge) ownerEvents(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	f := l.watch()
	defer f.Close()
	return streamFeed(c, f)
}
