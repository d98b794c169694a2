package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

type keysCmd struct {
	Show     keysShowCmd     `cmd:"" default:"withargs" help:"Show the agent's id and public keys."`
	Generate keysGenerateCmd `cmd:"" help:"Make a key file. The agent's own keys stay as they are."`
	Export   keysExportCmd   `cmd:"" name:"export-public" help:"Print the agent's public signing key."`
	Rotate   keysRotateCmd   `cmd:"" help:"Replace the signing key with a new one. The old key vouches for the new one."` // AM-60
}

// publicKey is the result of keys export-public and keys generate.
type publicKey struct {
	PublicKey string `json:"public_key"`
}

// publicKeys is the result of keys show and init.
type publicKeys struct {
	AgentID      string `json:"agent_id"`
	Derived      bool   `json:"id_is_derived"`
	Kind         string `json:"kind"`
	Fingerprint  string `json:"fingerprint"`
	PublicKey    string `json:"public_key"`
	AgeRecipient string `json:"age_recipient,omitempty"`
}

// readOwnCard returns the agent's card from the running serve process. If serve is not running, it returns the stored
// card, for which it needs neither the passphrase nor the database.
func (a *app) readOwnCard(ctx context.Context) (wire.Value, error) {
	dir, err := a.dataDir()
	if err != nil {
		return wire.Value{}, err
	}
	if o := daemon.Running(ctx, dir); o != nil {
		card, err := daemon.Fetch(ctx, o, owner.ShowCard.Call())
		return card, errors.Join(err, o.Close())
	}
	card, err := datadir.Dir(dir).Card()
	if err == nil && card.IsNull() {
		err = datadir.NoAgent(dir)
	}
	return card, err
}

func (a *app) readPublicKeys(ctx context.Context) (publicKeys, error) {
	card, err := a.readOwnCard(ctx)
	if err != nil {
		return publicKeys{}, err
	}
	key, err := signing.ParsePublicKey(card.GetStr("public_key"))
	if err != nil {
		return publicKeys{}, exit.Fail(exit.Config, fmt.Errorf("own card: %w", err))
	}
	meta, _ := card.Get("metadata")
	id := wire.AgentID(card.GetStr("agent_id"))
	return publicKeys{
		AgentID: string(id), Derived: signing.ProvesID(wire.Card{ID: id, Metadata: meta}, key, time.Now()) == nil, Kind: string(key.Kind()), Fingerprint: key.Fingerprint(),
		PublicKey: card.GetStr("public_key"), AgeRecipient: meta.GetStr(daemon.MetaAgeRecipient),
	}, nil
}

type keysShowCmd struct{}

func (c *keysShowCmd) Run(ctx context.Context, a *app) error {
	k, err := a.readPublicKeys(ctx)
	if err != nil {
		return err
	}
	return a.report(k, func() {
		a.Table([][]string{{"agent", k.AgentID}, {"key", k.Fingerprint}, {"age", k.AgeRecipient}})
		a.Print("%s", k.PublicKey)
	})
}

type keysExportCmd struct{}

func (c *keysExportCmd) Run(ctx context.Context, a *app) error {
	k, err := a.readPublicKeys(ctx)
	if err != nil {
		return err
	}
	return a.showPublicKey(k.PublicKey)
}

func (a *app) showPublicKey(text string) error {
	return a.report(publicKey{text}, func() { a.Print("%s", strings.TrimSpace(text)) })
}

type keysGenerateCmd struct {
	Kind    string `default:"ed25519" enum:"ed25519,age" help:"Kind of key: ${enum}."`
	Encrypt bool   `help:"Encrypt the file with a passphrase."`
	File    string `arg:"" help:"File to write, which must not exist yet."`
}

func (c *keysGenerateCmd) Run(_ context.Context, a *app) error {
	key, err := datadir.GenerateKey(c.Kind)
	if err != nil {
		return err
	}
	var passphrase []byte
	if c.Encrypt {
		if passphrase, err = a.readNewPassphrase("the key"); err != nil {
			return exit.Fail(exit.Usage, err)
		}
	}
	err = signing.WriteKeyFile(c.File, key, passphrase)
	if errors.Is(err, fs.ErrExist) {
		return exit.FailHint(exit.Input, fmt.Errorf("%s exists", c.File), "name another file, because agentmesh never overwrites keys")
	}
	if err != nil {
		return exit.Fail(exit.Input, err)
	}
	return a.showPublicKey(key.PublicText())
}

type keysRotateCmd struct{}

func (c *keysRotateCmd) Run(ctx context.Context, a *app) error {
	page, err := fetch(ctx, a, owner.RotateKey.Call())
	if err != nil {
		return err
	}
	listErr := a.showListings(page) // the key is replaced even if a directory does not list it yet
	if a.globals.JSON {
		return listErr
	}
	k, err := a.readPublicKeys(ctx)
	if err == nil {
		a.Print("new key: %s", k.Fingerprint)
	}
	return errors.Join(err, listErr)
}
