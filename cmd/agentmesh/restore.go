package main

import (
	"context"
	"io"
	"os"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

type restoreCmd struct {
	File     string `arg:"" help:"Archive that backup wrote, encrypted or not. The data directory must be empty or missing."`
	Identity string `placeholder:"FILE" help:"File with the age identity of an encrypted archive; - is standard input."`
	Replace  bool   `help:"Put the archive in place of what the data directory holds, which is kept in a folder replaced-… in it."`
}

func (c *restoreCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	archive, err := datadir.OpenArchive(c.File, c.identity(a), func() ([]byte, error) { return a.secretFor("the backup") })
	if err != nil {
		return err
	}
	defer archive.Close()
	stop := a.Working("unpacking and checking the archive", nil)
	kept, err := datadir.Dir(dir).Restore(ctx, archive, c.Replace)
	stop()
	if err != nil {
		return err
	}
	a.noteLeftOut(archive.About)
	a.Note("restored %s into %s, backed up %s", orDash(terminal.Clean(archive.About.AgentID)), dir, terminal.When(archive.About.Made))
	if kept != "" {
		a.Note("what was there before is in %s; delete it when you are sure: it holds private keys", kept)
	}
	return nil
}

const maxIdentityFile = 1 << 20

// identity returns what reads the age identities that the user named, nil for none.
func (c *restoreCmd) identity(a *app) func() ([]byte, error) {
	switch c.Identity {
	case "":
		return nil
	case "-":
		return func() ([]byte, error) { return io.ReadAll(io.LimitReader(a.In, maxIdentityFile)) }
	}
	return func() ([]byte, error) { return os.ReadFile(c.Identity) }
}
