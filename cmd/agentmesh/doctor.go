package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/doctor"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// doctorCmd looks at a node from inside and from outside and says what to do about what is wrong. It changes
// nothing, and it works whether a serve runs or not: what only a running one can show is a warning then.
type doctorCmd struct {
	URL  string `arg:"" optional:"" help:"Look at the agent at this URL instead, as a directory and its peers see it, or at the directory there."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *doctorCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	src, err := a.source()
	if err != nil {
		return err
	}
	report, err := doctor.Examine(ctx, doctor.Options{
		Dir: datadir.Dir(dir), Source: src, Directories: a.globals.Directory, Version: thisBuild().Version, Passphrase: a.passphrase,
	}, c.URL)
	if err != nil {
		return err
	}
	if c.JSON {
		err = a.JSON(report)
	} else {
		a.showDoctor(report)
	}
	if err == nil && !report.OK {
		err = exit.Quietly(exit.No)
	}
	return err
}

func (a *app) showDoctor(r doctor.Report) {
	var rows [][]string
	for _, f := range r.Findings {
		rows = append(rows, []string{f.State, f.Check, f.Text})
		if f.Do != "" {
			rows = append(rows, []string{"", "", "do: " + f.Do})
		}
	}
	a.Table(rows)
}
