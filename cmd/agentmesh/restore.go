package main

import (
	"cmp"
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

type restoreCmd struct {
	File     string `arg:"" help:"Archive that backup wrote. Without --replace, the data directory must be empty or missing."`
	Identity string `placeholder:"FILE" help:"File with the age identity for an encrypted archive; - reads standard input."`
	Replace  bool   `help:"Replace the content of the data directory. The old content is kept in a folder replaced-… in the directory."`
}

type restoreReport struct {
	Data     string `json:"data"`
	Replaced string `json:"replaced,omitempty"` // the folder with the old content
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
	replaced, err := datadir.Dir(dir).Restore(ctx, archive, c.Replace)
	stop()
	if err != nil {
		return err
	}
	a.noteLeftOut(archive.Manifest)
	err = a.report(restoreReport{dir, replaced, archive.Manifest}, func() {
		a.Note("restored %s into %s, from a backup made at %s", cmp.Or(terminal.Clean(archive.Manifest.AgentID), "a directory"), dir, terminal.FormatTime(archive.Manifest.Made))
	})
	if replaced != "" {
		a.Note("the old content is in %s; delete it when you no longer need it: it contains private keys", replaced)
	}
	return err
}
