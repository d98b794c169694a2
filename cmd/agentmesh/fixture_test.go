package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// fixtures is the folder with backups of earlier versions and their scripts. Scripts find it in $FIXTURES.
var fixtures = filepath.Join("testdata", "fixtures")

// fixtureEnv names the script in fixtures that TestMakeFixture runs.
const fixtureEnv = "AGENTMESH_TEST_FIXTURE"

// TestMakeFixture makes the backups of one schema with the current program, for example with
// AGENTMESH_TEST_FIXTURE=schema-1. Never make an existing backup again: it must be the work of the earlier version.
func TestMakeFixture(t *testing.T) {
	name := os.Getenv(fixtureEnv)
	if name == "" {
		t.Skip("makes fixtures only with " + fixtureEnv)
	}
	p := scriptParams("")
	p.Files = []string{filepath.Join(fixtures, name+".txtar")}
	testscript.Run(t, p)
}
