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
	File       string   `arg:"" help:"File to write, which must not exist yet, or - for standard output. It will contain the private keys."`
	Recipient  []string `placeholder:"AGE1" sep:"none" help:"Encrypt to this age recipient. Repeat for more recipients."`
	Passphrase bool     `help:"Encrypt with a passphrase, from AGENTMESH_PASSPHRASE_FILE or a prompt."`
}

type backupReport struct {
	File      string `json:"file"`
	Bytes     int64  `json:"bytes"`
	Encrypted bool   `json:"encrypted"`
	datadir.Manifest
}

func (c *backupCmd) Run(ctx context.Context, a *app) (err error) {
	if c.File == "-" && a.globals.JSON {
		return exit.Fail(exit.Usage, errors.New("the archive and --json both go to standard output: write the archive to a file"))
	}
	encryption, err := c.newEncryption(a)
	if err != nil {
		return err
	}
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	resp, err := o.Do(ctx, "POST", "backup", nil, struct{}{})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data := &terminal.CountingReader{Reader: resp.Body}
	stop := a.StartProgress("writing the backup", data.String)
	defer stop()
	if c.File == "-" {
		if err := datadir.CopyArchive(a.Out, data, encryption); err != nil {
			return datadir.ExplainDiskFull(fmt.Errorf("write backup: %w", err))
		}
		return nil // restore names the files that are not in the archive
	}
	n, manifest, err := datadir.SaveArchive(c.File, data, encryption)
	stop()
	if err != nil {
		return err
	}
	a.noteLeftOut(manifest)
	advice := "it contains the private keys"
	if encryption != nil {
		advice = "it is encrypted; keep its key on another machine"
	}
	return a.report(backupReport{c.File, n, encryption != nil, manifest}, func() { a.Note("wrote %d bytes to %s; %s", n, c.File, advice) })
}

// newEncryption returns nil if the user chose no encryption.
func (c *backupCmd) newEncryption(a *app) (*signing.AgeFile, error) {
	switch {
	case c.Passphrase && len(c.Recipient) > 0:
		return nil, exit.Fail(exit.Usage, errors.New("give --recipient or --passphrase, not both"))
	case c.Passphrase:
		passphrase, err := a.readNewPassphrase("the backup")
		if err != nil {
			return nil, exit.Fail(exit.Usage, err)
		}
		return signing.NewAgeFile(nil, passphrase)
	case len(c.Recipient) > 0:
		encryption, err := signing.NewAgeFile(c.Recipient, nil)
		if err != nil {
			return nil, exit.FailHint(exit.Usage, err, "age-keygen makes a key and prints its recipient")
		}
		return encryption, nil
	}
	return nil, nil
}

func (a *app) noteLeftOut(manifest datadir.Manifest) {
	for _, file := range manifest.LeftOut {
		a.Note("not in the backup: %s", terminal.Clean(file))
	}
}
