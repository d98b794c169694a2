package web

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// personView is everything about one peer.
type personView struct {
	peerRow
	Address       string // of a foreign peer
	Rule          string // the agent id or address under which the owner's rules about the peer are stored
	Conversations []talkView
	Asked         bool // the directories were asked
	Found         []foundIn
}

// maxPersonConversations is how many conversations the page of a person shows: the newest.
const maxPersonConversations = 20

func (p *pages) showPerson(c echo.Context) error {
	return p.renderPerson(c, c.Param("id"), http.StatusOK, "")
}

// renderPerson shows a peer: its rule, its names, its conversations, and its card if the owner asks the directories.
func (p *pages) renderPerson(c echo.Context, id string, status int, errorText string) error {
	ctx := c.Request().Context()
	view, err := p.findPerson(c, id)
	if err != nil {
		return err
	}
	if view.Asked = c.QueryParam("card") != ""; view.Asked && p.setup != nil && wire.AgentID(id).Valid() {
		if err := httpapi.KeepOpen(c, discoverFor); err != nil {
			return err
		}
		for _, a := range p.setup.LookUp(ctx, wire.AgentID(id)) {
			view.Found = append(view.Found, p.viewAnswer(ctx, a))
		}
	}
	return p.shell.Render(c, p.person, httpapi.View{
		Title: "Person", Status: status, Error: errorText, Done: p.doneMessage(c), Undo: p.undo(c), Data: view,
		Topics: []string{string(owner.TopicPeers), string(owner.TopicConversations)}, Self: httpapi.PagePath + personPath(id),
	})
}

func personPath(id string) string { return "/people/" + url.PathEscape(id) }

// findPerson returns what the node knows about a peer. Rules about a foreign peer are stored under its principal, for
// example its address.
func (p *pages) findPerson(c echo.Context, id string) (personView, error) {
	ctx := c.Request().Context()
	view := personView{Rule: id}
	if id == "" {
		return view, wire.ErrRoute
	}
	list, err := p.n.ListConversations(ctx, owner.Query{Peer: id, Limit: maxPersonConversations})
	if err != nil {
		return view, err
	}
	if view.Conversations, err = p.says.viewTalks(ctx, list.Items); err != nil {
		return view, err
	}
	if len(view.Conversations) > 0 {
		newest := view.Conversations[0]
		view.Rule = cmp.Or(newest.Principal, id)
		if newest.Peer == id || newest.Address == id { // otherwise id names a group, such as a chat space, and this peer is one of its members
			view.Address = newest.Address
		}
	}
	peers, err := p.n.ListPeers(ctx, view.Rule)
	if err != nil {
		return view, err
	}
	peer := owner.Peer{ID: view.Rule}
	if len(peers) > 0 {
		peer = peers[0]
	} else if len(view.Conversations) == 0 && !wire.AgentID(id).Valid() && !strings.Contains(id, ":") { // foreign principals have a ":"
		return view, owner.Fault(http.StatusNotFound, "there is no such peer", "")
	}
	names := p.namesOf(ctx, id)
	if len(peer.Aliases) == 0 && names.PeerAlias != "" {
		peer.Aliases = []string{names.PeerAlias}
	}
	peer.Name = cmp.Or(peer.Name, names.PeerName)
	view.peerRow = p.row(peer)
	view.ID = id // instead of the principal, which p.row sets
	return view, nil
}

func (v personView) Shown() owner.ShownName { return v.ShownAt(v.Address) }

// undoActions are the actions that give a peer back its standing.
var undoActions = map[acl.Standing]string{acl.Unknown: "unblock", acl.Allowed: "allow", acl.Approved: "approve", acl.Blocked: "block"}

// lastChange is the last change of a peer's standing that the owner made with a form of the page. The undo form is made from
// lastChange and not from the URL, because anybody can make a link.
type lastChange struct {
	mu      sync.Mutex
	peer    string
	did     string       // see doneMessages
	was, is acl.Standing // before and after the change
}

// undo returns a form that undoes the change that the owner has just made with a form. It returns nil if the last form changed no
// standing, or if it has changed again.
func (p *pages) undo(c echo.Context) *httpapi.Undo {
	p.changed.mu.Lock()
	defer p.changed.mu.Unlock()
	peer, did := c.QueryParam("who"), c.QueryParam("did")
	if peer == "" || peer != p.changed.peer || did != p.changed.did || p.changed.is == p.changed.was {
		return nil
	}
	if now, err := p.standing(c, peer); err != nil || now != p.changed.is {
		return nil
	}
	then := "undone"
	if did == string(acl.Block) {
		then = "unblocked"
	}
	return &httpapi.Undo{Path: "people", Fields: map[string]string{"peer": peer, "action": undoActions[p.changed.was], "undo": then}}
}

// standing returns what the rules say about a principal, for an undo. Without a rule it is Unknown.
func (p *pages) standing(c echo.Context, principal string) (acl.Standing, error) {
	peers, err := p.n.ListPeers(c.Request().Context(), principal)
	if err != nil || len(peers) == 0 {
		return acl.Unknown, err
	}
	return peers[0].Standing, nil
}

// doneChanged is [doneWith] for a change of a peer's standing, which the next page offers to undo.
func (p *pages) doneChanged(c echo.Context, path, did, peer string, was acl.Standing) error {
	is, err := p.standing(c, peer)
	if err != nil {
		return err
	}
	p.changed.mu.Lock()
	p.changed.peer, p.changed.did, p.changed.was, p.changed.is = peer, did, was, is
	p.changed.mu.Unlock()
	return doneWith(c, path, did, peer)
}
