package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// mewService is the MEW bridge: the spaces that this process hosts, and the links to these and other spaces.
type mewService struct {
	*link.Bridge
	gateway *gateway.Gateway // nil if this process hosts no space
}

var _ bridge.Service = (*mewService)(nil)

// newMew makes the MEW bridge. It returns nil without a node, if the configuration has no spaces.
func newMew(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error) {
	if len(p.cfg.MEW.Spaces) == 0 {
		if p.node == nil {
			return nil, nil
		}
		b, err := p.newMewLinks(links, mesh)
		return &mewService{Bridge: b}, err
	}
	cfg := gateway.Config{
		Records: p.bridgeStore.Records(), Audit: p.audit, PublicURL: socketURL(p.base), Origins: p.cfg.MEW.Origins,
		CORSOrigins: p.cfg.MEW.Origins, Logger: p.log, InviteNotice: p.newInvitationNotice,
	}
	for _, s := range p.cfg.MEW.Spaces {
		space, err := p.src.LoadMEWSpace(s)
		if err != nil {
			return nil, fmt.Errorf("space %s: %w", s.ID, err)
		}
		cfg.Spaces = append(cfg.Spaces, space)
	}
	g, err := gateway.New(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	for i, l := range links {
		if !l.own {
			continue
		}
		token, err := g.Space(l.Space).AddNode(l.Participant)
		if err != nil {
			return nil, fmt.Errorf("space %s: %w", l.Space, err)
		}
		links[i].Token = client.Credential(token)
	}
	b, err := p.newMewLinks(links, mesh)
	return &mewService{Bridge: b, gateway: g}, err
}

// newInvitationNotice returns the change that stores a notice to the owner about an invitation to an e-mail address.
// The gateway does not send mail: the inviter, who has the token, must send the invitation.
func (p *Process) newInvitationNotice(i gateway.Invitation) store.Change {
	return p.notices.Change(notify.Notice{
		Kind: "mew-invited", Title: "somebody was invited to a MEW space", At: time.Now(),
		Text: fmt.Sprintf("%s to space %s, invitation for %s, %s", i.Participant, i.Space, i.Email, i.URL),
	})
}

// socketURL returns the ws or wss URL for an http or https URL.
func socketURL(base string) string {
	return "ws" + strings.TrimPrefix(base, "http")
}

// Mount adds the routes for MEW clients if this process hosts a space.
func (m *mewService) Mount(e *echo.Echo) {
	if m.gateway != nil {
		mew.Mount(e, m.gateway)
	}
}

// Operations returns the operations of the owner API for the spaces and the links.
func (m *mewService) Operations() []owner.Operation {
	return mew.Operations(m.gateway, m.Bridge)
}

// MountPage adds the hosted and the joined spaces to the owner's page.
func (m *mewService) MountPage(pages *httpapi.Pages) { mew.MountPages(pages, m.gateway, m.Bridge) }

// Run runs the spaces and the links until ctx ends.
func (m *mewService) Run(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return m.Bridge.Run(ctx) })
	if m.gateway != nil {
		all.Go(func() error { return m.gateway.Run(ctx) })
	}
	return all.Wait()
}

func (p *Process) newMewLinks(links []linkConfig, mesh bridge.Mesh) (*link.Bridge, error) {
	cfg := link.Config{
		Mesh: mesh, Tokens: map[string]client.Credential{}, Records: p.bridgeStore.Records(), Steps: p.bridgeStore.Steps(), Logger: p.log,
		Own: map[string]bool{}, Dial: dialer(p),
	}
	for _, l := range links {
		cfg.Links, cfg.Tokens[l.Name], cfg.Own[l.Name] = append(cfg.Links, l.Link), l.Token, l.own
	}
	return link.New(cfg)
}
