package link

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// commandPatience is how long a command waits for the relay's answer.
const commandPatience = 10 * time.Second

// PeerView is an agent behind a link, as the owner sees it.
type PeerView struct {
	Peer
	Address   string       `json:"address"`
	Pseudonym wire.AgentID `json:"pseudonym"`
	Skills    []string     `json:"skills,omitempty"` // according to the peer
	Seen      bool         `json:"seen"`             // the link has seen it since the process started
}

// PeerChange is what the owner says about a peer.
type PeerChange struct {
	Agent wire.AgentID `json:"agent_id"` // empty: no agent of the mesh that the owner knows
}

// Broadcast is a message of the owner to everybody on a relay. It belongs to no conversation.
type Broadcast struct {
	Type    string     `json:"type"`
	Ref     string     `json:"ref,omitempty"`
	Payload wire.Value `json:"payload"`
}

// Command is a request to the relay: Type is "query", or "command" for the history. The relay must have the
// extension for it.
type Command struct {
	Type    string     `json:"type"`
	Payload wire.Value `json:"payload"`
}

// These are the owner's operations on a link.
var (
	ShowFeed      = owner.Endpoint[owner.None, owner.List[FeedItem]]{Method: http.MethodGet, Path: "/agentrelay/links/:link/feed", Right: owner.Read}
	ListPeers     = owner.Endpoint[owner.None, owner.List[PeerView]]{Method: http.MethodGet, Path: "/agentrelay/links/:link/peers", Right: owner.Read}
	ChangePeer    = owner.Endpoint[PeerChange, Peer]{Method: http.MethodPut, Path: "/agentrelay/links/:link/peers/:peer", Right: owner.Decide}
	SendBroadcast = owner.Endpoint[Broadcast, owner.None]{Method: http.MethodPost, Path: "/agentrelay/links/:link/broadcast", Right: owner.Decide}
	SendCommand   = owner.Endpoint[Command, wire.Value]{Method: http.MethodPost, Path: "/agentrelay/links/:link/command", Right: owner.Decide}
)

// Operations returns the owner's operations on links. find returns a link by name.
func Operations(find func(name string) (*Link, error)) []owner.Operation {
	return []owner.Operation{
		serve(ShowFeed, find, (*Link).listFeedItems), serve(ListPeers, find, (*Link).listPeers), serve(ChangePeer, find, (*Link).changePeer),
		serve(SendBroadcast, find, (*Link).sendBroadcast), serve(SendCommand, find, (*Link).sendCommand),
	}
}

func serve[In, Out any](e owner.Endpoint[In, Out], find func(name string) (*Link, error), do func(*Link, echo.Context, In) (Out, error)) owner.Operation {
	return e.Serve(func(c echo.Context, in In) (out Out, err error) {
		l, err := find(c.Param("link"))
		if err != nil {
			return out, owner.Fault(http.StatusNotFound, "there is no such AgentRelay link; run agentmesh links list to see the names", "")
		}
		return do(l, c, in)
	})
}

func (l *Link) listFeedItems(c echo.Context, _ owner.None) (out owner.List[FeedItem], err error) {
	limit := 50
	if s := c.QueryParam("limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > feedSize {
			return out, owner.Fault(http.StatusBadRequest, "limit must be 1 to 1000", "")
		}
	}
	out.Items = l.itemLog.latest(limit)
	return out, nil
}

func (l *Link) listPeers(c echo.Context, _ owner.None) (out owner.List[PeerView], err error) {
	stored, err := l.peers.all(c.Request().Context())
	if err != nil {
		return out, wire.ErrUnavailable.Because(err)
	}
	l.peers.mu.Lock()
	defer l.peers.mu.Unlock()
	for id := range l.peers.skills {
		if _, ok := stored[id]; !ok {
			stored[id] = Peer{Peer: id}
		}
	}
	out.Items = make([]PeerView, 0, len(stored))
	for id, p := range stored {
		address := l.address(id)
		skills, seen := l.peers.skills[id]
		out.Items = append(out.Items, PeerView{p, address.String(), address.Pseudonym(), skills, seen})
	}
	slices.SortFunc(out.Items, func(a, b PeerView) int { return strings.Compare(a.Peer.Peer, b.Peer.Peer) })
	return out, nil
}

func (l *Link) changePeer(c echo.Context, in PeerChange) (Peer, error) {
	id := c.Param("peer")
	switch {
	case !frame.ValidAgentID(id) || id == frame.RelayID:
		return Peer{}, owner.Fault(http.StatusBadRequest, "the peer must be the id of an agent on a relay, such as agent-042", "")
	case in.Agent != "" && !in.Agent.Valid():
		return Peer{}, owner.Fault(http.StatusBadRequest, "agent_id must be an id of the mesh (am_…)", "")
	}
	p := Peer{Peer: id, Agent: in.Agent}
	if err := l.peers.put(c.Request().Context(), p); err != nil {
		return p, wire.ErrUnavailable.Because(err)
	}
	return p, nil
}

func (l *Link) sendBroadcast(_ echo.Context, in Broadcast) (owner.None, error) {
	if len(in.Type) > frame.MaxTypeText || len(in.Ref) > frame.MaxRefText {
		return owner.None{}, owner.Fault(http.StatusBadRequest, "type may have at most 128 bytes, and ref at most 512", "")
	}
	data := frame.Request(frame.Everybody, in.Type, in.Ref, in.Payload).JSON()
	if len(data) > frame.MaxSize {
		return owner.None{}, owner.Fault(http.StatusRequestEntityTooLarge, "the message is larger than the 64 KB that a relay takes", "")
	}
	return owner.None{}, l.writeNow(data)
}

// writeNow sends a frame for the owner, or returns why that is not possible now.
func (l *Link) writeNow(data []byte) error {
	wait, err := l.sender.send(data)
	switch {
	case wait > 0:
		return wire.ErrRateLimited.After(wait)
	case err == nil:
		return nil
	case l.Status().State != bridge.LinkUp && errors.Is(err, errDown):
		e := *wire.ErrUnavailable.Because(err)
		e.Message = "the link is not connected; agentmesh links status " + l.Name() + " shows the reason"
		return &e
	}
	return wire.ErrUnavailable.Because(err)
}

func (l *Link) sendCommand(c echo.Context, in Command) (wire.Value, error) {
	if in.Type != "command" && in.Type != "query" {
		return wire.Value{}, owner.Fault(http.StatusBadRequest, "type must be command or query", "")
	}
	ref := frame.NewID()
	answers, forget := l.waiters.Expect(waitKey(frame.RelayID, ref))
	defer forget()
	if err := l.writeNow(frame.Request(frame.RelayID, in.Type, ref, in.Payload).JSON()); err != nil {
		return wire.Value{}, err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), commandPatience)
	defer cancel()
	select {
	case v := <-answers:
		if code := v.GetStr("code"); code != "" {
			return v, owner.Fault(http.StatusConflict, "the relay refused the command: "+wire.OneLine(code, 64), "")
		}
		return v, nil
	case <-ctx.Done():
		return wire.Value{}, owner.Fault(http.StatusGatewayTimeout, "the relay does not answer; it may not have this extension", "")
	}
}
