package agentrelay

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const commandPatience = 10 * time.Second

// linkOperations returns what the owner may read of links and say over them.
func (b *Bridge) linkOperations() []owner.Operation {
	on := func(f func(echo.Context, *link) error) echo.HandlerFunc {
		return func(c echo.Context) error {
			l, err := b.link(c.Param("link"))
			if err != nil {
				return ownerFault(http.StatusNotFound, "there is no such AgentRelay link; agentmesh links list names them")
			}
			return f(c, l)
		}
	}
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/agentrelay/links/:link/feed", owner.Read, on(getFeed)),
		owner.Raw(http.MethodGet, "/agentrelay/links/:link/peers", owner.Read, on(getPeers)),
		owner.Raw(http.MethodPut, "/agentrelay/links/:link/peers/:peer", owner.Decide, on(putPeer)),
		owner.Raw(http.MethodPost, "/agentrelay/links/:link/broadcast", owner.Send, on(postBroadcast)),
		owner.Raw(http.MethodPost, "/agentrelay/links/:link/command", owner.Decide, on(postCommand)),
	}
}

func getFeed(c echo.Context, l *link) error {
	limit := 50
	if s := c.QueryParam("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > feedSize {
			return ownerFault(http.StatusBadRequest, "limit must be 1 to 1000")
		}
		limit = n
	}
	return httpapi.JSON(c, http.StatusOK, owner.List[FeedItem]{Items: l.feed.latest(limit)})
}

// PeerView is an agent behind a link, as the owner sees it.
type PeerView struct {
	Peer
	Address   string       `json:"address"`
	Pseudonym wire.AgentID `json:"pseudonym"`
	Skills    []string     `json:"skills,omitempty"` // as it says itself
	Seen      bool         `json:"seen"`             // since the process started
}

func getPeers(c echo.Context, l *link) error {
	known, err := l.keptPeers(c.Request().Context())
	if err != nil {
		return wire.ErrUnavailable.Because(err)
	}
	l.mu.Lock()
	for id := range l.peers {
		if _, ok := known[id]; !ok {
			known[id] = Peer{Peer: id}
		}
	}
	out := owner.List[PeerView]{Items: make([]PeerView, 0, len(known))}
	for id, p := range known {
		v := PeerView{Peer: p, Address: l.address(id).String(), Pseudonym: l.address(id).Pseudonym(), Seen: l.peers[id]}
		v.Skills = l.hints.of(id).Skills
		out.Items = append(out.Items, v)
	}
	l.mu.Unlock()
	slices.SortFunc(out.Items, func(a, b PeerView) int { return strings.Compare(a.Peer.Peer, b.Peer.Peer) })
	return httpapi.JSON(c, http.StatusOK, out)
}

func (l *link) keptPeers(ctx context.Context) (map[string]Peer, error) {
	page, err := l.b.cfg.Store.Records().List(ctx, nsPeers, "link:"+l.cfg.Name, "", maxPeersKept, time.Now())
	if err != nil {
		return nil, err
	}
	out := make(map[string]Peer)
	for _, rec := range page.Records {
		p := Peer{rev: rec.Rev}
		if err := json.Unmarshal(rec.Body, &p); err != nil {
			return nil, err
		}
		out[p.Peer] = p
	}
	return out, nil
}

// putPeer takes the owner's word about a peer: who of the mesh it is, and which key is its own.
func putPeer(c echo.Context, l *link) error {
	var req struct {
		Agent     *wire.AgentID `json:"agent_id"`
		Recipient *string       `json:"age_recipient"`
	}
	if err := decode(c, &req); err != nil {
		return err
	}
	id := c.Param("peer")
	if !ValidAgentID(id) || id == relayID {
		return ownerFault(http.StatusBadRequest, "that is no id of an agent on a relay")
	}
	if req.Agent != nil && *req.Agent != "" && !req.Agent.Valid() {
		return ownerFault(http.StatusBadRequest, "agent_id must be an id of the mesh (am_…)")
	}
	if req.Recipient != nil && *req.Recipient != "" && !signing.ValidAgeRecipient(*req.Recipient) {
		return ownerFault(http.StatusBadRequest, "age_recipient must be a key such as age1…")
	}
	p, err := l.changePeer(c.Request().Context(), id, func(p *Peer) bool {
		if req.Agent != nil {
			p.Agent = *req.Agent
		}
		if req.Recipient != nil {
			p.Recipient, p.ByOwner, p.Pending = *req.Recipient, *req.Recipient != "", ""
		}
		return true
	})
	if err != nil {
		return wire.ErrUnavailable.Because(err)
	}
	return httpapi.JSON(c, http.StatusOK, p)
}

// postBroadcast says something to everybody on the relay: the owner's own words, in no conversation.
func postBroadcast(c echo.Context, l *link) error {
	var req struct {
		Type    string     `json:"type"`
		Ref     string     `json:"ref"`
		Payload wire.Value `json:"payload"`
	}
	if err := decode(c, &req); err != nil {
		return err
	}
	if len(req.Type) > maxTypeText || len(req.Ref) > maxRefText {
		return ownerFault(http.StatusBadRequest, "type has at most 128 bytes and ref 512")
	}
	v := wire.Obj(wire.Field("to", wire.Texts([]string{everybody})))
	if req.Type != "" {
		v = v.With("type", wire.Text(req.Type))
	}
	if req.Ref != "" {
		v = v.With("ref", wire.Text(req.Ref))
	}
	frame := v.With("payload", req.Payload).JSON()
	if len(frame) > MaxFrame {
		return ownerFault(http.StatusRequestEntityTooLarge, "a relay takes at most 64 KB")
	}
	if wait := l.budget.Take(time.Now()); wait > 0 {
		return wire.ErrRateLimited.After(wait)
	}
	if err := l.write(frame); err != nil {
		return notConnected(l, err)
	}
	return c.NoContent(http.StatusNoContent)
}

func notConnected(l *link, err error) error {
	e := *wire.ErrUnavailable.Because(err)
	e.Message = "the link is not connected; agentmesh links status " + l.cfg.Name + " says why"
	if l.status().State != bridge.LinkUp && errors.Is(err, errDown) {
		return &e
	}
	return wire.ErrUnavailable.Because(err)
}

// postCommand asks the relay itself, where it has the extensions for it: history, search, replay, query.
func postCommand(c echo.Context, l *link) error {
	var req struct {
		Type    string     `json:"type"`
		Payload wire.Value `json:"payload"`
	}
	if err := decode(c, &req); err != nil {
		return err
	}
	if req.Type != "command" && req.Type != "query" {
		return ownerFault(http.StatusBadRequest, "type must be command or query")
	}
	answer, err := l.askRelay(c.Request().Context(), req.Type, req.Payload)
	if err != nil {
		return err
	}
	return httpapi.Raw(c, http.StatusOK, answer.JSON())
}

// askRelay sends a command to the relay and waits for what it answers to it.
func (l *link) askRelay(ctx context.Context, kind string, payload wire.Value) (wire.Value, error) {
	ref := newID()
	answered, stop, err := l.await(relayID, ref)
	if err != nil {
		return wire.Value{}, wire.ErrUnavailable.Because(err)
	}
	defer stop()
	if wait := l.budget.Take(time.Now()); wait > 0 {
		return wire.Value{}, wire.ErrRateLimited.After(wait)
	}
	frame := wire.Obj(wire.Field("to", wire.Texts([]string{relayID})), text("type", kind), text("ref", ref), wire.Field("payload", payload)).JSON()
	if err := l.write(frame); err != nil {
		return wire.Value{}, notConnected(l, err)
	}
	ctx, cancel := context.WithTimeout(ctx, commandPatience)
	defer cancel()
	select {
	case v := <-answered:
		if code := v.GetStr("code"); code != "" {
			return v, ownerFault(http.StatusConflict, "the relay refuses: "+wire.OneLine(code, 64))
		}
		return v, nil
	case <-ctx.Done():
		return wire.Value{}, ownerFault(http.StatusGatewayTimeout, "the relay does not answer; it may not have this extension")
	}
}
