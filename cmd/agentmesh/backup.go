package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/signing"
)

type backupCmd struct {
	File       string   `arg:"" help:"File to write, which must not exist, or - for standard output. It will hold the private keys."`
	Recipient  []string `placeholder:"AGE1" sep:"none" help:"Encrypt to this age recipient; may be repeated."`
	Passphrase bool     `help:"Encrypt with a passphrase: AGENTMESH_PASSPHRASE_FILE, or asked for."`
}

func (c *backupCmd) Run(ctx context.Context, a *app) (err error) {
	lock, err := c.lock(a)
	if err != nil {
		return err
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	resp, err := o.Do(ctx, "POST", "backup", nil, struct{}{})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data := &terminal.Counted{Reader: resp.Body}
	stop := a.Working("writing the backup", data.String)
	defer stop()
	if c.File == "-" {
		if err := datadir.CopyArchive(a.Out, data, lock); err != nil {
			return datadir.RoomFault(fmt.Errorf("write backup: %w", err))
		}
		return nil
	}
	n, about, err := datadir.SaveArchive(c.File, data, lock)
	stop()
	if err != nil {
		return err
	}
	a.noteLeftOut(about)
	holds := "it holds the private keys"
	if lock != nil {
		holds = "it is encrypted; keep its key elsewhere than here"
	}
	a.Note("wrote %d bytes to %s; %s", n, c.File, holds)
	return nil
}

// lock is how the archive is encrypted, nil where it is not.
func (c *backupCmd) lock(a *app) (*signing.AgeFile, error) {
	switch {
	case c.Passphrase && len(c.Recipient) > 0:
		return nil, exit.Fail(exit.Usage, errors.New("an archive is encrypted to recipients or with a passphrase, not both"))
	case c.Passphrase:
		passphrase, err := a.newSecret("the backup")
		if err != nil {
			return nil, exit.Fail(exit.Usage, err)
		}
		return signing.NewAgeFile(nil, passphrase)
	case len(c.Recipient) > 0:
		lock, err := signing.NewAgeFile(c.Recipient, nil)
		if err != nil {
			return nil, exit.FailHint(exit.Usage, err, "age-keygen makes a key and prints its recipient")
		}
		return lock, nil
	}
	return nil, nil
}

// noteLeftOut warns of what is not in an archive.
func (a *app) noteLeftOut(about datadir.Manifest) {
	for _, what := range about.LeftOut {
		a.Note("not in the backup: %s", terminal.Clean(what))
	}
}
