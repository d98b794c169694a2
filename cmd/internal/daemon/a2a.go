package daemon

import (
	"cmp"
	"log/slog"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/discovery"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/owner/contact"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newA2A makes the A2A bridge. Every process with a node has one, because the owner may write to any A2A agent by its
// URL. The bridge serves others only if the configuration says so.
func newA2A(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error) {
	if p.node == nil {
		return nil, nil
	}
	cfg := a2a.Config{
		Serve: p.switches.in(p.cfg).A2A.Serve == "on", Anonymous: p.cfg.A2A.Anonymous, URL: p.base, Version: p.build.Version, Local: !p.cfg.Public(),
		Addresses: p.server.Addresses(), Mesh: mesh, Store: p.bridgeStore, HTTP: p.http,
		Idle: p.cfg.Conversations.Idle, Logger: p.log,
	}
	cfg.Relay = mailboxA2AURL(p, p.node.ID())
	if len(p.directories) > 0 {
		cfg.Directory = p.directories[0].Base
	}
	cfg.Links, cfg.Tokens = splitLinks(links)
	return a2a.New(cfg)
}

// mailboxA2AURL returns the URL at which the directory with the node's mailbox (via_relay) takes A2A messages for the
// agent with this id. It returns "" for a node without a mailbox.
func mailboxA2AURL(p *Process, id wire.AgentID) string {
	relay := p.mailboxDirectory()
	if relay == nil {
		return ""
	}
	return strings.TrimSuffix(relay.Base, "/v1") + "/a2a/" + string(id)
}

// addA2AMetadata adds the URL of the A2A card to the metadata of card, if the node serves A2A and others can reach it.
// Directories then list the node as an A2A agent (decision 50).
func addA2AMetadata(p *Process, card wire.Card, metadata wire.Value) wire.Value {
	mailbox := mailboxA2AURL(p, card.ID)
	if p.switches.in(p.cfg).A2A.Serve != "on" || mailbox == "" && !isPublishable(p.cfg, p.base, card.Endpoint) {
		return metadata
	}
	return metadata.With("a2a", wire.Text(cmp.Or(mailbox, p.base)+message.PathCard))
}

// ownEntries returns what the ARD manifest of the directory lists besides the directory itself: the node of this
// process, if the node serves A2A at its own address.
func ownEntries(p *Process) []discovery.Entry {
	if p.node == nil || p.switches.in(p.cfg).A2A.Serve != "on" || p.mailboxDirectory() != nil {
		return nil
	}
	card := p.node.Card()
	return []discovery.Entry{{
		Identifier: string(card.ID), DisplayName: card.Name, Type: discovery.TypeA2A, URL: p.base + message.PathCard,
		Description: card.Description, Capabilities: card.Capabilities,
		RepresentativeQueries: []string{"write to " + card.Name, "ask the agent " + card.Name},
	}}
}

// mountContacts serves A2A at one URL for each of the owner's contacts. An agent of the owner that can only send to an
// A2A URL chooses the recipient by that URL.
func mountContacts(e *echo.Echo, contacts *contact.Door, log *slog.Logger) {
	front := door.New(door.Config{
		Open:  func(c echo.Context) (door.Caller, error) { return contacts.Open(c.Param("contact")), nil },
		Error: contact.ErrorOf, Logger: log,
	})
	for _, path := range []string{"/a2a/:contact", "/a2a/:contact/*"} {
		e.Match([]string{http.MethodGet, http.MethodPost, http.MethodDelete}, path, func(c echo.Context) error {
			base := c.Request().URL.EscapedPath()
			if end := strings.Index(base[len("/a2a/"):], "/"); end >= 0 {
				base = base[:len("/a2a/")+end]
			}
			return front.Serve(c, base)
		})
	}
}
