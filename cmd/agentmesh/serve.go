package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/cmd/internal/welcome"
)

// serveCmd runs directory and node on one listener until a signal stops it.
type serveCmd struct {
	serverFlags
}

func (c *serveCmd) Run(ctx context.Context, a *app) (err error) {
	a.minLogLevel, a.server = slog.LevelDebug, c.serverFlags
	if terminal.IsTerminal(a.Out) && !a.globals.JSON {
		a.logs = terminal.Hold(a.Err) // the address to sign in is printed before the log
		defer func() { err = errors.Join(err, a.logs.Release()) }()
	}
	o, err := a.options()
	if err != nil {
		return err
	}
	for _, m := range o.Source.MissingPrograms(o.Config) {
		a.Note("%s", terminal.Clean(m))
	}
	return a.serve(ctx, o)
}

// serve runs until ctx ends. It prints the addresses once everything answers.
func (a *app) serve(ctx context.Context, o daemon.Options) error {
	return daemon.Run(ctx, o, a.options, func(serveCtx context.Context, p *daemon.Process, info daemon.ServeInfo) error {
		if a.globals.JSON {
			line, err := json.Marshal(info)
			a.Print("%s", line)
			return err
		}
		var certificate daemon.Certificate
		if o.Config.Public() {
			certificate = p.AwaitCertificate(serveCtx)
		}
		if a.logs == nil {
			welcome.PrintForScript(&a.UI, info, certificate)
			return nil
		}
		signIn, err := info.SignIn()
		if err != nil {
			return err
		}
		welcome.PrintForPerson(&a.UI, info, certificate, signIn)
		terminal.OpenBrowser(signIn.URL)
		context.AfterFunc(ctx, func() { fmt.Fprintln(a.Out, welcome.Stopping) })
		return a.logs.Release()
	})
}
