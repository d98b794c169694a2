package main

import (
	"cmp"
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/doctor"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// doctorCmd examines a node from inside and outside. It changes nothing, and serve need not be running.
type doctorCmd struct {
	URL string `arg:"" optional:"" help:"Examine the agent or directory at this URL instead, as its peers see it."`
	directoryFlag
}

func (c *doctorCmd) Run(ctx context.Context, a *app) error {
	a.server.Directory = c.Directory
	src, dir, err := a.sourceAndDir()
	if err != nil {
		return err
	}
	stop := a.AwaitAnswer("checking")
	report, err := doctor.Examine(ctx, doctor.Options{
		Dir: dir, Source: src, Directories: c.Directory, Version: thisBuild().Version, Passphrase: a.readKeyPassphrase,
	}, c.URL)
	stop()
	if err != nil {
		return err
	}
	return cmp.Or(a.report(report, func() { a.showDoctor(report) }), exit.Unless(report.OK, exit.No))
}

func (a *app) showDoctor(r doctor.Report) {
	var rows [][]string
	for _, f := range r.Findings {
		rows = append(rows, []string{f.State, f.Check, f.Text})
		if f.Do != "" {
			rows = append(rows, []string{"", "", "do: " + a.Command(f.Do)})
		}
	}
	a.Table(rows)
}
