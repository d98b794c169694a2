package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/manual"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// manCmd prints a page of the manual, or writes all pages to a directory: agentmesh.1, and one page for each command
// with its subcommands. The pages are generated from the grammar of the command line, so they always match the program.
type manCmd struct {
	Page string `arg:"" optional:"" help:"Command whose page to print (default: the main page). For example: agentmesh man send | man -l -"`
	Dir  string `placeholder:"DIR" help:"Write all pages into this directory."`
}

func (c *manCmd) Run(a *app) error {
	var cli commands
	build := thisBuild()
	pages := manual.Pages(newParser(&cli, a.Out, a.Err).Model.Node, build.Version, build.Date)
	if c.Dir != "" {
		return a.writeManual(c.Dir, pages)
	}
	name := "agentmesh"
	if c.Page != "" {
		name += "-" + c.Page
	}
	for _, p := range pages {
		if p.Name == name {
			_, err := fmt.Fprint(a, p.Text)
			return err
		}
	}
	return exit.FailHint(exit.Usage, fmt.Errorf("there is no page for %s", terminal.Clean(c.Page)), "list the commands with: agentmesh --help")
}

func (a *app) writeManual(dir string, pages []manual.Page) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("write the manual: %w", err))
	}
	var faults []error
	for _, p := range pages {
		faults = append(faults, os.WriteFile(filepath.Join(dir, p.Name+".1"), []byte(p.Text), 0o644))
	}
	if err := errors.Join(faults...); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("write the manual: %w", err))
	}
	a.Note("wrote %d pages to %s", len(pages), dir)
	return nil
}
