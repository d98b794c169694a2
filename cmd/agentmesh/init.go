package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/agentmesh/agentmesh/node/client"
)

// initCmd makes a new agent; serve does the same on its first run.
type initCmd struct {
	Encrypt bool `help:"Encrypt the two private keys with a passphrase, which every start then needs."`
	JSON    bool `help:"Print the result as JSON."`
}

func (c *initCmd) Run(ctx context.Context, a *app) error {
	cfg, err := a.checkedConfig()
	if err != nil {
		return err
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if (home{dir}).initialised() {
		return failHint(exitConfig, fmt.Errorf("there is an agent in %s", dir), "look at it with: agentmesh keys show")
	}
	var passphrase []byte
	if c.Encrypt {
		if passphrase, err = a.newSecret("the signing key"); err != nil {
			return fail(exitUsage, err)
		}
	}
	p, err := a.open(ctx, cfg) // so that two at once do not make two agents
	if err != nil {
		return err
	}
	if err := errors.Join(p.initialise(passphrase, localBase(cfg)), p.Close()); err != nil {
		return err
	}
	keys, err := a.publicKeys(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.json(keys)
	}
	a.table([][]string{{"agent", keys.AgentID}, {"name", cfg.Name}, {"key", keys.Fingerprint}, {"age", keys.AgeRecipient}, {"data", dir}})
	a.note("back up %s: whoever has its keys is this agent", dir)
	return nil
}

// initialise makes keys, credential and card where the directory holds no agent.
func (p *process) initialise(passphrase []byte, base string) error {
	if p.home.initialised() {
		return nil
	}
	if err := p.home.create(passphrase); err != nil {
		return err
	}
	known := func() ([]byte, error) { return passphrase, nil }
	s, err := p.home.secrets(known)
	if err != nil {
		return err
	}
	stored, err := p.home.card()
	if err != nil {
		return err
	}
	card, err := buildCard(p.cfg, s, stored, base)
	if err != nil {
		return err
	}
	return p.home.saveCard(card.Tree)
}

// replaceCredential makes a new credential where it was lost (AM-83): unlike the keys it is not who the agent is.
func (p *process) replaceCredential() error {
	if _, err := os.Lstat(p.home.path(fileCredential)); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := p.home.writeNew(fileCredential, string(client.NewCredential())+"\n"); err != nil {
		return fail(exitConfig, fmt.Errorf("write the credential: %w", err))
	}
	p.log.Warn("the credential was lost and a new one made; a directory that lists the card takes it when the reservation has ended, or by its operator")
	return nil
}
