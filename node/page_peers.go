package node

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

type peersView struct {
	Mode    acl.Mode
	Query   string
	Peers   []peerRow
	More    bool
	Alias   string
	Address string
}

// peerRow is a peer with what may be done about it.
type peerRow struct {
	peerView
	Configured bool // the configuration says so, and only there it changes
	Buttons    []peerButton
}

type peerButton struct{ Action, Label, Class string }

// maxPeerRows is how many peers a page shows; the search finds the others.
const maxPeerRows = 100

func (p *pages) showPeers(c echo.Context) error { return p.peersPage(c, http.StatusOK, "") }

func (p *pages) peersPage(c echo.Context, status int, wrong string) error {
	peers, err := p.n.peerViews(c.Request().Context())
	if err != nil {
		return ownerError(err)
	}
	view := peersView{Mode: p.n.mode(), Query: c.QueryParam("q")}
	for _, peer := range peers {
		if !strings.Contains(peer.ID+" "+strings.Join(peer.Aliases, " "), view.Query) {
			continue
		}
		if len(view.Peers) == maxPeerRows {
			view.More = true
			break
		}
		view.Peers = append(view.Peers, p.row(peer))
	}
	return p.shell.Render(c, p.peers, httpapi.View{
		Title: "Peers", Status: status, Wrong: wrong, Said: said(c), Topics: []string{string(TopicPeers)},
		Self: selfOfPeers(view.Query), Data: view,
	})
}

func selfOfPeers(query string) string {
	self := httpapi.PagePath + "/peers"
	if query != "" {
		self += "?q=" + url.QueryEscape(query)
	}
	return self
}

func (p *pages) row(peer peerView) peerRow {
	r := peerRow{peerView: peer, Configured: p.n.configured(peer.ID)}
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
	case p.n.cfg.Outbound.Mode == acl.Approval:
		r.Buttons = append(r.Buttons, peerButton{"write", "Send without asking", ""})
	}
	r.Buttons = append(r.Buttons, peerButton{"forget", "Forget", "quiet"})
	return r
}

// changePeer carries out one word of the owner about a peer, or takes the card of a new one.
func (p *pages) changePeer(c echo.Context) error {
	form, err := httpapi.Form(c, maxPageForm)
	if err != nil {
		return err
	}
	ctx, action := c.Request().Context(), form.Get("action")
	if action == "add" {
		if err := p.n.addPeerAt(ctx, strings.TrimSpace(form.Get("url")), strings.TrimSpace(form.Get("alias"))); err != nil {
			return p.peerFault(c, err)
		}
		return httpapi.Done(c, "peers", "added")
	}
	id, err := p.n.principal(ctx, form.Get("peer"))
	if err == nil {
		err = p.n.changePeer(ctx, id, peerChange{Action: action, Alias: strings.TrimSpace(form.Get("alias"))}, doorPage)
	}
	if err != nil {
		return p.peerFault(c, ownerError(err))
	}
	return httpapi.Done(c, "peers", "peer")
}

func (p *pages) peerFault(c echo.Context, err error) error {
	if refusal, ok := errors.AsType[*wire.Error](err); ok && refusal.Status != http.StatusInternalServerError {
		return p.peersPage(c, refusal.Status, refusal.Message)
	}
	return err
}

// configured says whether the configuration names a peer: it wins over what is changed here.
func (n *Node) configured(id string) bool {
	return slices.Contains(n.cfg.Policy.Allow, id) || slices.Contains(n.cfg.Policy.Block, id)
}

type outboxView struct {
	State   SendState
	States  []SendState
	Letters listed[Letter]
}

func (p *pages) showOutbox(c echo.Context) error {
	ctx := c.Request().Context()
	view := outboxView{State: SendState(c.QueryParam("state")), States: []SendState{"", SendQueued, SendDelivered, SendUnverified, SendFailed, SendUnknown}}
	letters, err := latest("out_", c.QueryParam("before"), time.Now(), micros, func(l Letter) string { return l.ID },
		func(after string, limit int) ([]Letter, string, error) {
			return p.n.Outbox(ctx, view.State, after, limit)
		})
	if err != nil {
		return ownerError(err)
	}
	view.Letters = letters
	return p.shell.Render(c, p.outbox, httpapi.View{Title: "Outbox", Topics: []string{string(TopicOutbox)}, Data: view})
}

// addPeerAt takes the card that lies at a URL, by the owner's word.
func (n *Node) addPeerAt(ctx context.Context, from, alias string) error {
	if alias != "" {
		if err := checkAlias(alias); err != nil {
			return err
		}
	}
	card, err := n.fetchCard(ctx, from)
	if err != nil {
		return fault(http.StatusBadGateway, "cannot fetch the card: "+err.Error(), "")
	}
	peer, err := n.cards.AddPeer(ctx, card, time.Now())
	if err != nil {
		return fault(http.StatusBadRequest, "the card is not acceptable: "+err.Error(), "")
	}
	if alias == "" {
		return nil
	}
	return n.setAlias(ctx, alias, string(peer.Card.ID))
}

// aliases returns what the owner calls whom: one alias of each peer that has any.
func (n *Node) aliases(ctx context.Context) (map[string]string, error) {
	names := make(map[string]string)
	err := n.eachRecord(ctx, nsAliases, time.Now(), func(r store.Record) {
		if names[string(r.Body)] == "" {
			names[string(r.Body)] = r.Key
		}
	})
	return names, err
}
