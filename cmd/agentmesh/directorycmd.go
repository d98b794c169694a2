package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

type directoryCmd struct {
	Mirror directoryMirrorCmd `cmd:"" help:"Serve a read-only copy of another directory. The copy verifies every card itself."`
}

// directoryMirrorCmd runs a directory that follows the change feed of another one. It has its own data directory.
type directoryMirrorCmd struct {
	Listen *string `placeholder:"HOST:PORT" help:"Same as --set listen=…"`
	URL    string  `arg:"" help:"Base URL of the directory, such as https://directory.example.com/v1."`
}

func (c *directoryMirrorCmd) Run(ctx context.Context, a *app) error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return exit.FailHint(exit.Usage, fmt.Errorf("%s is not an http or https URL", terminal.Clean(c.URL)), "name the base URL of a directory, which usually ends in /v1")
	}
	a.server = serverFlags{Listen: c.Listen, Roles: new(config.RoleDirectory)}
	a.minLogLevel = slog.LevelDebug
	o, err := a.options()
	if err != nil {
		return err
	}
	o.Mirror = c.URL
	return a.serve(ctx, o)
}
