package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/manual"
	"github.com/agentmesh/agentmesh/node/owner"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: ${enum}."`
}

func (c *completionCmd) Run(_ context.Context, a *app) error {
	_, err := a.Write([]byte(manual.CompletionScripts[c.Shell]))
	return err
}

// completeCmd prints the possible last words of an incomplete command line. The completion scripts call it.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"The words after the program's name. The last word is incomplete."`
}

func (c *completeCmd) Run(ctx context.Context, a *app) error {
	var cli commands
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if i := slices.Index(words, "--data"); i >= 0 && i+1 < len(words) {
		a.globals.Data = words[i+1]
	}
	for _, word := range manual.Complete(newParser(&cli, a.Out, a.Err).Model.Node, words, func() []string { return a.typeablePeers(ctx) }) {
		a.Print("%s", word)
	}
	return nil
}

// typeablePeers returns an alias or the id of each peer, if serve runs.
func (a *app) typeablePeers(ctx context.Context) (names []string) {
	dir, err := a.dataDir()
	if err != nil {
		return nil
	}
	o := daemon.Running(ctx, dir)
	if o == nil {
		return nil
	}
	defer o.Close()
	peers, err := owner.Fetch(ctx, &o.Client, owner.ListPeers.With(owner.None{}))
	if err != nil {
		return nil
	}
	for _, p := range peers.Items {
		names = append(names, cmp.Or(append(p.Aliases, p.ID)...))
	}
	return names
}
