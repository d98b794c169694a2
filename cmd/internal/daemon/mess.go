package daemon

import (
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
)

// newMESS makes the MESS exchange of this process and the links to other exchanges. It returns nil without a node.
func newMESS(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error) {
	if p.node == nil {
		return nil, nil
	}
	c := p.cfg.MESS
	invite, err := p.src.Secret("mess.invite_file", c.InviteFile)
	if err != nil {
		return nil, err
	}
	registration := c.Registration
	if registration == "" && !p.cfg.Public() {
		registration = "open"
	}
	files := c.Attachments
	if files != "" {
		files = p.src.ResolvePath(files)
	}
	cfg := mess.Config{
		Exchange: exchange.New(exchange.Config{
			ID: c.Exchange, Store: p.bridgeStore, Files: files, Registration: registration, Invite: invite, Logger: p.log,
			CallsPerMinute: zeroIsOff(c.CallsPerMinute), ThreadsPerHour: zeroIsOff(c.ThreadsPerHour),
			RegistrationsPerHour: zeroIsOff(c.RegistrationsPerHour),
		}),
		Serve: c.Serve == "on" || c.Serve == "auto" && !p.cfg.Public(), Local: !p.cfg.Public(), URL: p.base,
		Mesh: mesh, Names: p.node.OwnerAPI(), Notices: p.notices, Store: p.bridgeStore, HTTP: p.http, Logger: p.log,
	}
	if c.Directory != "" {
		cfg.Mirror = p.src.ResolvePath(c.Directory) // the folder of thread files
	}
	cfg.Links, cfg.Tokens = splitLinks(links)
	return mess.New(cfg)
}
