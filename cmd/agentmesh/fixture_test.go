package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// fixtures holds backups that programs of earlier schemas made, and the scripts that made them. A script finds it as
// $FIXTURES.
var fixtures = filepath.Join("testdata", "fixtures")

// fixtureEnv names the script in fixtures that TestMakeFixture runs.
const fixtureEnv = "AGENTMESH_TEST_FIXTURE"

// TestMakeFixture makes the backups of one schema with the program as it is, for example with
// AGENTMESH_TEST_FIXTURE=schema-1. A backup is never made again: it is what a program of that time wrote.
func TestMakeFixture(t *testing.T) {
	name := os.Getenv(fixtureEnv)
	if name == "" {
		t.Skip("makes fixtures only with " + fixtureEnv)
	}
	p := scriptParams("")
	p.Files = []string{filepath.Join(fixtures, name+".txtar")}
	testscript.Run(t, p)
}
