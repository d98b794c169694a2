package main

import (
	"context"
	"errors"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/relay"
	"github.com/agentmesh/agentmesh/node/owner"
)

// agentRelayCmd has the commands for the AgentRelay relay that this process hosts, and for links to other relays.
type agentRelayCmd struct {
	Feed    agentRelayFeedCmd    `cmd:"" aliases:"show" help:"Show the broadcasts of the relay behind a link."`
	Send    agentRelaySendCmd    `cmd:"" help:"Broadcast a message on a relay. To write to one agent: agentmesh send agentrelay:LINK/AGENT."`
	Peers   agentRelayPeersCmd   `cmd:"" help:"List the agents behind a link."`
	Peer    agentRelayPeerCmd    `cmd:"" help:"Set the agent of the mesh that an agent behind a link is."`
	History agentRelayHistoryCmd `cmd:"" help:"Show the history of a relay that keeps one."`

	Agents agentRelayAgentsCmd `cmd:"" default:"withargs" aliases:"list" help:"List the agents of the relay that runs here."`
	Token  agentRelayTokenCmd  `cmd:"" help:"Make a token for an agent of the relay. The token is shown once."`
	Invite agentRelayInviteCmd `cmd:"" help:"Make a code that registers one agent. The code is shown once."`
	Remove agentRelayRemoveCmd `cmd:"" help:"Remove an agent from the relay. Its id stays reserved for a year, or until more than 10,000 others were removed after it."`
}

type agentRelayAgentsCmd struct{}

func (c *agentRelayAgentsCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"AGENT", "CONNECTED", "SINCE", "ACTIVE", "LIMITS"}
	return callAndShowList(ctx, a, relay.ListAgents.Call(), "no agents: agentmesh agentrelay token makes one", heads, func(v relay.AgentView) []string {
		connected, limits := "-", "yes"
		if v.Connected {
			connected = "yes"
		}
		if v.Trusted {
			limits = "none"
		}
		return []string{v.ID, connected, terminal.FormatTime(v.Since), terminal.FormatTime(v.Active), limits}
	})
}

type agentRelayTokenCmd struct {
	Agent   string `arg:"" optional:"" help:"Id of the agent: 3 to 64 characters from a-z 0-9 -. Without it, the relay makes one."`
	Renew   bool   `help:"Replace the token of a registered agent. The old token stops working at once."`
	Trusted bool   `help:"Exempt the agent from the rate limit."`
}

func (c *agentRelayTokenCmd) Run(ctx context.Context, a *app) error {
	if c.Renew && (c.Agent == "" || c.Trusted) {
		return exit.Fail(exit.Usage, errors.New("--renew needs the id of an agent, and does not go with --trusted"))
	}
	call := relay.AddAgent.With(relay.NewAgent{ID: c.Agent, Trusted: c.Trusted})
	if c.Renew {
		call = relay.RenewToken.Call(c.Agent)
	}
	return callAndShow(ctx, a, call, func(t frame.Credentials) {
		a.Print("%s", terminal.Clean(t.Token))
		a.Note("token of %s", terminal.Clean(t.AgentID))
	})
}

type agentRelayInviteCmd struct{}

func (c *agentRelayInviteCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, relay.AddInvite.Call(), func(t relay.Invite) {
		a.Print("%s", terminal.Clean(t.Code))
		a.Note("valid once, until %s, as the header AgentMesh-Invite of POST /register", terminal.FormatTime(t.Expires))
	})
}

type agentRelayRemoveCmd struct {
	Agent string `arg:"" help:"Id of the agent."`
}

func (c *agentRelayRemoveCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, relay.RemoveAgent.Call(c.Agent), func(owner.None) { a.Note("removed") })
}
