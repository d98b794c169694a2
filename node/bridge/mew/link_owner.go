package mew

import (
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// Operations returns what the owner calls about the spaces that the node takes part in.
func (b *Bridge) Operations() []owner.Operation {
	const below = "/mew/links"
	places := placeOperations(below, func(c echo.Context) (*place, error) {
		l, err := b.linkIn(c)
		if err != nil {
			return nil, err
		}
		return linkPlace(l), nil
	})
	return append(places,
		owner.Raw(http.MethodGet, below, owner.Read, b.ownerLinks),
		owner.Raw(http.MethodPost, below+"/:name/connect", owner.Decide, b.ownerConnect),
		owner.Raw(http.MethodPost, below+"/:name/conversations", owner.Decide, b.ownerBring),
		owner.Raw(http.MethodGet, below+"/:name/conversations", owner.Read, b.ownerBrought),
	)
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
	return httpapi.JSON(c, http.StatusOK, owner.List[LinkSummary]{Items: b.summaries()})
}

// linkIn finds the link that the path names.
func (b *Bridge) linkIn(c echo.Context) (*link, error) {
	if l := b.link(c.Param("name")); l != nil {
		return l, nil
	}
	return nil, fault(http.StatusNotFound, "there is no such link; agentmesh mew spaces names them")
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

func (b *Bridge) ownerBrought(c echo.Context) error {
	l, err := b.linkIn(c)
	if err != nil {
		return err
	}
	all, err := l.allBrought(c.Request().Context())
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, owner.List[brought]{Items: append([]brought{}, slices.Clone(all)...)})
}
