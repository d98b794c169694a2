package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/agentmesh/agentmesh/node/client"
)

// directoryCmd is about directories as such.
type directoryCmd struct {
	Mirror directoryMirrorCmd `cmd:"" help:"Serve a read-only copy of another directory that checks every card itself."`
}

// directoryMirrorCmd runs a directory that follows another one's feed of changes. It keeps a data directory of its own.
type directoryMirrorCmd struct {
	URL  string `arg:"" help:"Base URL of the directory, https://directory.example.com/v1."`
	JSON bool   `help:"Print where everything runs as one line of JSON."`
}

func (c *directoryMirrorCmd) Run(ctx context.Context, a *app) (err error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return failHint(exitUsage, fmt.Errorf("%s is no URL", clean(c.URL)), "name the base URL of a directory, which usually ends in /v1")
	}
	roles := roleDirectory
	a.globals.Roles = &roles
	cfg, err := a.checkedConfig()
	if err != nil {
		return err
	}
	a.quietest = slog.LevelDebug
	p, err := a.openToServe(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	listener, err := listen(cfg.Listen, "--listen")
	if err != nil {
		return err
	}
	base := cfg.reachedAt(listener)
	p.mirror = true
	if err := p.prepare(ctx, base); err != nil {
		return errors.Join(err, listener.Close())
	}
	source := client.NewDirectory(c.URL, p.http, nil)
	return p.serve(ctx, listener, func(ctx context.Context) error {
		if err := p.announce(ctx, listener.Addr().String(), base, c.JSON); err != nil {
			return err
		}
		p.registry.Follow(ctx, source)
		return nil
	})
}
