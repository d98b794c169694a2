package main

import "github.com/agentmesh/agentmesh/cmd/internal/manual"

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: ${enum}."`
}

func (c *completionCmd) Run(a *app) error {
	_, err := a.Write([]byte(manual.CompletionScripts[c.Shell]))
	return err
}

// completeCmd prints the possible last words of an incomplete command line. The completion scripts call it.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"The words after the program's name. The last word is incomplete."`
}

func (c *completeCmd) Run(a *app) error {
	var cli commands
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	for _, word := range manual.Complete(newParser(&cli, a.Out, a.Err).Model.Node, words) {
		a.Print("%s", word)
	}
	return nil
}
