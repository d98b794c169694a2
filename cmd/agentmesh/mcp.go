package main

import (
	"context"
	"io"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/owner/mcp"
)

type mcpCmd struct {
	Push []string `placeholder:"AGENT" sep:"none" help:"Push messages of this agent into the session (Claude Code channels). Repeat for more."`
}

func (c *mcpCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	o, err := daemon.ConnectDoor(ctx, a.globals.AgentSocket, dir) // the part of the owner API that decides nothing
	if err != nil {
		return err
	}
	defer o.Close()
	cfg := mcp.Config{Client: &o.Client, Version: thisBuild().Version, Logger: a.newLogger(config.Default().Log), Channel: len(c.Push) > 0}
	var channel *mcp.Channel
	if cfg.Channel {
		channel = mcp.NewChannel(cfg, c.Push)
	}
	return mcp.ServeStdio(ctx, mcp.New(cfg), io.NopCloser(a.In), nopWriteCloser{a.Out}, channel)
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }
