package main

import (
	"fmt"
	"io"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/manual"
)

// TestLinkSteps: for each kind of link there is a next command, and the parser accepts it.
func TestLinkSteps(t *testing.T) {
	for _, kind := range daemon.LinkKinds() {
		var cli commands
		if _, err := manual.Parse(newParser(&cli, io.Discard, io.Discard), shellWords(fmt.Sprintf(linkSteps[kind.Name], "garden"))[1:]); err != nil {
			t.Errorf("%s: %v", kind.Name, err)
		}
	}
}
