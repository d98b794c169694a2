package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// serveCmd runs directory and node on one listener until a signal stops it.
type serveCmd struct {
	JSON bool `help:"Print the addresses as one line of JSON."`
}

func (c *serveCmd) Run(ctx context.Context, a *app) error {
	a.minLogLevel = slog.LevelDebug
	o, err := a.options()
	if err != nil {
		return err
	}
	for _, m := range o.Source.MissingPrograms(o.Config) {
		a.Note("%s", terminal.Clean(m))
	}
	return a.serve(ctx, o, c.JSON)
}

// serve runs a process until ctx ends. It prints the addresses once everything answers.
func (a *app) serve(ctx context.Context, o daemon.Options, asJSON bool) (err error) {
	p, err := daemon.OpenToServe(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return p.Serve(ctx, func(ctx context.Context, w daemon.ServeInfo) error {
		if asJSON {
			line, err := json.Marshal(w)
			a.Print("%s", line)
			return err
		}
		listening := ""
		if o.Config.Public() {
			listening = listenerState(w.Address, p.AwaitCertificate(ctx))
		}
		a.showServeInfo(w, listening)
		return nil
	})
}

// listenerState describes the listener and its certificate for the user who has just started it.
func listenerState(address string, c daemon.Certificate) string {
	switch {
	case !c.TLS:
		return address + " without TLS: your reverse proxy must end TLS"
	case !c.NotAfter.IsZero():
		return address + " with TLS, certificate until " + terminal.FormatTime(c.NotAfter)
	case c.Error != "":
		return address + " with TLS, but nobody can connect yet: " + terminal.Clean(c.Error)
	default:
		return address + " with TLS, waiting for the certificate"
	}
}

// showServeInfo prints the addresses of a serve, and commands to try.
func (a *app) showServeInfo(w daemon.ServeInfo, listening string) {
	rows := [][]string{}
	add := func(what, value string) {
		if value != "" {
			rows = append(rows, []string{"  " + what, value})
		}
	}
	add("directory", w.Directory)
	add("node", w.Endpoint)
	add("agent", string(w.AgentID))
	add("name", w.Name)
	add("data", w.Data)
	add("owner API", w.Socket+" (used by the other commands)")
	add("and on", w.OwnerAPI)
	add("listening on", listening)
	a.Print("agentmesh is running in the %s profile, ctrl-c stops it", w.Profile)
	a.Table(rows)
	a.Print("")
	a.Print("try, in another terminal:")
	if w.Directory != "" {
		a.Print("  curl '%s/agents?capability=scheduling'", w.Directory)
	}
	if w.Endpoint != "" {
		a.Print("  curl %s", w.Endpoint)
		a.Print("  agentmesh page")
	}
	if w.Directory != "" && w.AgentID != "" {
		a.Print("  curl %s/agents/%s", w.Directory, w.AgentID)
	}
}
