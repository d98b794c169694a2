package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/owner"
)

// bridgeCmd has the commands for what the process serves to other networks.
type bridgeCmd struct {
	List    bridgeListCmd    `cmd:"" default:"withargs" help:"List the protocols that this process can serve to others, and which are on."`
	Enable  bridgeEnableCmd  `cmd:"" help:"Serve a protocol to others: mess, agentrelay, moltspeak or a2a. A serve that runs does so at once."`
	Disable bridgeDisableCmd `cmd:"" help:"Stop serving a protocol to others. Links to other networks go on."`
}

type bridgeListCmd struct{}

func (c *bridgeListCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, daemon.ListBridges.Call(), func(page owner.List[daemon.BridgeState]) {
		rows := [][]string{{"KIND", "SERVE"}}
		for _, b := range page.Items {
			rows = append(rows, []string{b.Kind, b.Serve})
		}
		a.Table(rows)
	})
}

type bridgeEnableCmd struct {
	Kind string `arg:"" help:"mess, agentrelay, moltspeak or a2a."`
}

func (c *bridgeEnableCmd) Run(ctx context.Context, a *app) error {
	return a.switchBridge(ctx, c.Kind, true)
}

type bridgeDisableCmd struct {
	Kind string `arg:"" help:"mess, agentrelay, moltspeak or a2a."`
}

func (c *bridgeDisableCmd) Run(ctx context.Context, a *app) error {
	return a.switchBridge(ctx, c.Kind, false)
}

func (a *app) switchBridge(ctx context.Context, kind string, serve bool) error {
	return ask(ctx, a, daemon.SwitchBridge.With(daemon.BridgeSwitch{Serve: serve}, kind), func(change daemon.ConfigChange) {
		state := map[bool]string{true: "on", false: "off"}[serve]
		if !change.Running {
			state += " as soon as agentmesh serve starts"
		}
		a.Note("%s is %s", change.Name, state)
	})
}
