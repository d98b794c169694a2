package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/relay"
	"github.com/agentmesh/agentmesh/node/owner"
)

// agentRelayCmd is about the AgentRelay relay that is hosted here, and the relays that the node is linked to.
type agentRelayCmd struct {
	Feed    agentRelayFeedCmd    `cmd:"" help:"Read what was said to everybody on a relay that the node is linked to."`
	Send    agentRelaySendCmd    `cmd:"" help:"Say something to everybody on a relay. To one agent: agentmesh send agentrelay:LINK/AGENT."`
	Peers   agentRelayPeersCmd   `cmd:"" help:"List the agents behind a link."`
	Peer    agentRelayPeerCmd    `cmd:"" help:"Say who an agent behind a link is, or which key it has."`
	History agentRelayHistoryCmd `cmd:"" help:"Ask a relay for its history, where it keeps one."`

	Agents agentRelayAgentsCmd `cmd:"" help:"List the agents of the relay that is hosted here."`
	Token  agentRelayTokenCmd  `cmd:"" help:"Make a token for an agent of the relay; a known agent gets a new one. It is shown once."`
	Invite agentRelayInviteCmd `cmd:"" help:"Make a code that registers one agent. It is shown once."`
	Remove agentRelayRemoveCmd `cmd:"" help:"Take an agent off the relay for good: its id is not given out again."`
}

type agentRelayAgentsCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *agentRelayAgentsCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, relay.ListAgents.Call(), func(page owner.List[relay.AgentView]) {
		rows := [][]string{{"AGENT", "CONNECTED", "SINCE", "ACTIVE", "LIMITS"}}
		for _, v := range page.Items {
			on, limits := "-", "yes"
			if v.Connected {
				on = "yes"
			}
			if v.Trusted {
				limits = "none"
			}
			rows = append(rows, []string{terminal.Clean(v.ID), on, terminal.When(v.Since), terminal.When(v.Active), limits})
		}
		a.List(rows, "no agents: agentmesh agentrelay token makes one")
	})
}

type agentRelayTokenCmd struct {
	Agent   string `arg:"" optional:"" help:"Id of the agent: 3 to 64 of a-z 0-9 -. Empty: the relay makes one."`
	Renew   bool   `help:"The agent is known: its old token ends at once."`
	Trusted bool   `help:"The agent has no rate limit."`
	JSON    bool   `help:"Print the result as JSON."`
}

func (c *agentRelayTokenCmd) Run(ctx context.Context, a *app) error {
	if c.Renew && (c.Agent == "" || c.Trusted) {
		return exit.Fail(exit.Usage, errors.New("--renew needs the id of an agent, and changes its token alone"))
	}
	call := relay.AddAgent.With(relay.NewAgent{ID: c.Agent, Trusted: c.Trusted})
	if c.Renew {
		call = relay.RenewToken.Call(c.Agent)
	}
	return ask(ctx, a, c.JSON, call, func(t frame.Credentials) {
		a.Print("%s", terminal.Clean(t.Token))
		a.Note("token of %s", terminal.Clean(t.AgentID))
	})
}

type agentRelayInviteCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *agentRelayInviteCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, relay.AddInvite.Call(), func(t relay.Invite) {
		a.Print("%s", terminal.Clean(t.Code))
		a.Note("good once until %s, as the header AgentMesh-Invite of POST /register", terminal.When(t.Expires))
	})
}

type agentRelayRemoveCmd struct {
	Agent string `arg:"" help:"Id of the agent."`
}

func (c *agentRelayRemoveCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	_, err = o.Call(ctx, http.MethodDelete, "agentrelay/agents/"+url.PathEscape(c.Agent), nil, nil)
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	a.Note("removed")
	return nil
}
