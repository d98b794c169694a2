package main

import (
	"cmp"
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

type restoreCmd struct {
	File     string `arg:"" help:"Archive that backup wrote. The data directory must be empty or missing."`
	Identity string `placeholder:"FILE" help:"File with the age identity for an encrypted archive; - reads standard input."`
}

type restoreReport struct {
	Data string `json:"data"`
	datadir.Manifest
}

func (c *restoreCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.fileDir("restore")
	if err != nil {
		return err
	}
	var identity func() ([]byte, error)
	if c.Identity != "" {
		identity = func() ([]byte, error) { return a.ReadInput(c.Identity) }
	}
	archive, err := datadir.OpenArchive(c.File, identity, func() ([]byte, error) { return a.readPassphrase("the backup") })
	if err != nil {
		return err
	}
	defer archive.Close()
	stop := a.StartProgress("unpacking and checking the archive", nil)
	err = datadir.Dir(dir).Restore(ctx, archive)
	stop()
	if err != nil {
		return err
	}
	a.noteLeftOut(archive.Manifest)
	return a.report(restoreReport{dir, archive.Manifest}, func() {
		a.Note("restored %s into %s, from a backup made at %s", cmp.Or(terminal.Clean(archive.Manifest.AgentID), "a directory"), dir, terminal.FormatTime(archive.Manifest.Made))
	})
}
