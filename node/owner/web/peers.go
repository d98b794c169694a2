package web

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type peersView struct {
	Mode  acl.Mode
	Query string
	Peers []peerRow
	More  bool // the query matches more peers than the page shows
}

type peerRow struct {
	owner.Peer
	Buttons  []peerButton
	Last     time.Time // of a message in one of the newest conversations; zero: not there
	Messages uint64    // in these conversations
	Share    uint64    // of the most that any peer has, in percent
}

type peerButton struct{ Action, Label, Class string }

// maxPeerRows is how many peers a page shows; the search finds the others.
const maxPeerRows = 100

func (p *pages) showPeers(c echo.Context) error { return p.renderPeers(c, http.StatusOK, "") }

func (p *pages) renderPeers(c echo.Context, status int, errorText string) error {
	peers, err := p.n.ListPeers(c.Request().Context(), "")
	if err != nil {
		return err
	}
	view := peersView{Mode: p.n.Modes().Incoming, Query: c.QueryParam("q")}
	for _, peer := range peers {
		if !strings.Contains(strings.ToLower(peer.ID+" "+peer.Name+" "+strings.Join(peer.Aliases, " ")), strings.ToLower(view.Query)) {
			continue
		}
		if len(view.Peers) == maxPeerRows {
			view.More = true
			break
		}
		view.Peers = append(view.Peers, p.row(peer))
	}
	const conversations = 100
	latest, err := p.n.ListConversations(c.Request().Context(), owner.Query{Limit: conversations})
	if err != nil {
		return err
	}
	addContact(view.Peers, latest.Items)
	self := httpapi.PagePath + "/people"
	if view.Query != "" {
		self += "?q=" + url.QueryEscape(view.Query)
	}
	return p.shell.Render(c, p.peers, httpapi.View{
		Title: "People", Status: status, Error: errorText, Done: p.doneMessage(c), Undo: p.undo(c), Topics: []string{string(owner.TopicPeers)},
		Self: self, Data: view,
	})
}

// addContact says how close the peers are, from the newest conversations, and sorts them by the last message.
func addContact(peers []peerRow, latest []owner.Conversation) {
	most := uint64(1)
	for i := range peers {
		r := &peers[i]
		for _, conv := range latest {
			if cmp.Or(conv.Principal, conv.Peer) == r.ID {
				r.Messages += conv.Entries
				if conv.Last.After(r.Last) {
					r.Last = conv.Last
				}
			}
		}
		most = max(most, r.Messages)
	}
	for i := range peers {
		peers[i].Share = peers[i].Messages * 100 / most
	}
	slices.SortStableFunc(peers, func(a, b peerRow) int { return b.Last.Compare(a.Last) })
}

// row returns a peer with the buttons for it.
func (p *pages) row(peer owner.Peer) peerRow {
	r := peerRow{Peer: peer}
	if r.Configured {
		return r
	}
	if peer.Standing != acl.Allowed {
		r.Buttons = append(r.Buttons, peerButton{"allow", "Allow", ""})
	}
	if peer.Standing != acl.Blocked {
		r.Buttons = append(r.Buttons, peerButton{"block", "Block", "danger"})
	}
	switch {
	case peer.Write:
		r.Buttons = append(r.Buttons, peerButton{"no-write", "Ask before sending", ""})
	case p.n.Modes().Outgoing == acl.Approval:
		r.Buttons = append(r.Buttons, peerButton{"write", "Send without asking", ""})
	}
	r.Buttons = append(r.Buttons, peerButton{"forget", "Forget", "quiet"})
	return r
}

// changePeer makes one change to a peer, or adds the card of a new one.
func (p *pages) changePeer(c echo.Context, form url.Values) error {
	ctx, action := c.Request().Context(), form.Get("action")
	alias := strings.TrimSpace(form.Get("alias"))
	if action == "add" {
		if _, err := p.n.AddPeer(ctx, owner.NewPeer{URL: strings.TrimSpace(form.Get("url")), Alias: alias}, door); err != nil {
			return p.peerFault(c, "", err)
		}
		return httpapi.Done(c, "people", "added")
	}
	was, err := p.standing(c, form.Get("peer"))
	if err != nil {
		return err
	}
	changed, err := p.n.ChangePeer(ctx, form.Get("peer"), owner.PeerChange{Action: action, Alias: alias}, door)
	path, person := "people", form.Get("person")
	switch {
	case action == "forget": // the page of the person may be gone
		person = ""
	case person != "":
		path = strings.TrimPrefix(personPath(person), "/")
	}
	switch {
	case err != nil:
		return p.peerFault(c, person, owner.Explain(err))
	case action == "forget": // an undo could not bring back what was known
		return doneWith(c, path, "peer", string(changed.ID))
	case form.Get("undo") != "":
		return doneWith(c, path, form.Get("undo"), string(changed.ID))
	case action == "block":
		return p.doneChanged(c, path, string(acl.Block), string(changed.ID), was)
	}
	return p.doneChanged(c, path, "peer", string(changed.ID), was)
}

// peerFault shows a refusal on the page of a person or, if person is "", on the page of all peers.
func (p *pages) peerFault(c echo.Context, person string, err error) error {
	refusal, ok := errors.AsType[*wire.Error](err)
	switch {
	case !ok || refusal.Status == http.StatusInternalServerError:
		return err
	case person != "":
		return p.renderPerson(c, person, refusal.Status, refusal.Message)
	}
	return p.renderPeers(c, refusal.Status, refusal.Message)
}

type outboxView struct {
	State   owner.SendState
	States  []owner.SendState
	Entries owner.List[owner.OutboxEntry]
}

func (p *pages) showOutbox(c echo.Context) error {
	view := outboxView{State: owner.SendState(c.QueryParam("state")), States: []owner.SendState{"", owner.SendQueued, owner.SendDelivered, owner.SendUnverified, owner.SendFailed, owner.SendUnknown}}
	entries, err := p.n.ListOutbox(c.Request().Context(), latest(view.State, c.QueryParam("before")))
	if err != nil {
		return err
	}
	view.Entries = entries
	return p.shell.Render(c, p.outbox, httpapi.View{Title: "Outbox", Topics: []string{string(owner.TopicOutbox)}, Data: view})
}
