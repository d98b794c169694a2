package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
)

type bridgeCmd struct {
	List    bridgeListCmd   `cmd:"" default:"withargs" help:"List the protocols that this process can serve to others, with their setting: on, off or auto."`
	Enable  bridgeSwitchCmd `cmd:"" help:"Serve a protocol to others: mess, agentrelay, moltspeak or a2a. A running agentmesh serve applies this at once."`
	Disable bridgeSwitchCmd `cmd:"" help:"Stop serving a protocol to others. Links to other networks keep working."`
}

type bridgeListCmd struct{}

func (c *bridgeListCmd) Run(ctx context.Context, a *app) error {
	return callAndShowList(ctx, a, daemon.ListBridges.Call(), "no protocols", []string{"KIND", "SERVE"}, func(b daemon.BridgeState) []string {
		return []string{b.Kind, b.Serve}
	})
}

// bridgeSwitchCmd makes this process serve the protocol to others, or stop serving it.
type bridgeSwitchCmd struct {
	Kind string `arg:"" help:"mess, agentrelay, moltspeak or a2a."`
}

func (c *bridgeSwitchCmd) Run(ctx context.Context, a *app) error {
	on := a.command == "enable"
	return callAndShow(ctx, a, daemon.SwitchBridge.With(daemon.BridgeSwitch{Serve: on}, c.Kind), func(change daemon.ConfigChange) {
		state := map[bool]string{true: "on", false: "off"}[on]
		if !change.Running {
			state += " as soon as agentmesh serve starts"
		}
		a.Note("%s is %s", change.Name, state)
	})
}
