package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// envTestStore is the variable that makes the scripts run on one PostgreSQL server, with a schema for each data
// directory:
//
//	AGENTMESH_TEST_STORE=postgres go test -tags slow ./cmd/agentmesh -run TestScripts
const envTestStore = "AGENTMESH_TEST_STORE"

// envTestServer is the variable with the connection string of that server, for the processes that scripts start.
const envTestServer = "TEST_POSTGRES"

// envTestTurn is the variable with the name of a file that counts the commands of a script. It is set if a script runs
// on several instances; see TestScriptsOnInstances. The data directory of each further instance has the name of the
// previous one with instanceMarks at the end.
const (
	envTestTurn   = "TEST_TURN"
	instanceMarks = "+"
)

// useNextInstance makes this process, a command on a data directory, use the instance whose turn it is.
func useNextInstance(dir, turn string) error {
	dirs := []string{dir}
	for next := dir + instanceMarks; len(dirs) < 10; next += instanceMarks {
		if _, err := os.Stat(next); err != nil {
			break
		}
		dirs = append(dirs, next)
	}
	if strings.HasSuffix(dir, instanceMarks) || len(dirs) == 1 {
		return nil
	}
	count, err := os.ReadFile(turn)
	if err != nil {
		return err
	}
	use := dirs[len(count)%len(dirs)]
	os.Setenv("AGENTMESH_DATA", use)
	os.Args = slices.DeleteFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "--data=") })
	if i := slices.Index(os.Args, "--data"); i > 0 {
		os.Args = slices.Delete(os.Args, i, i+2)
	}
	return os.WriteFile(turn, append(count, '.'), 0o600)
}

// fileOnly has the scripts that need a database file, and why.
var fileOnly = map[string]string{
	"backup":       "agentmesh backup, restore and check",
	"compact":      "agentmesh compact",
	"fulldisk":     "min_free_disk",
	"init":         "looks at the database file",
	"operations":   "agentmesh backup",
	"page":         "agentmesh backup",
	"postgres":     "starts servers of its own",
	"postgreskeys": "starts servers of its own",
	"sealed":       "searches the database file for the text of a message",
	"serve":        "agentmesh check beside a serve",
	"trouble":      "sends before the lease of a killed serve has ended",
	"walkthrough":  "agentmesh check",
}

// testServer starts the server of a run on PostgreSQL, and returns its connection string, or "" for a run on files.
func testServer(t *testing.T) string {
	if os.Getenv(envTestStore) != "postgres" {
		return ""
	}
	server, err := pgtest.Start("max_connections=400")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server.URL("postgres")
}

// mainOnTestServer runs main on a schema for the data directory, if a script runs on PostgreSQL.
func mainOnTestServer() {
	const key = "AGENTMESH_STORE_POSTGRES"
	server := os.Getenv(envTestServer)
	set, ok := os.LookupEnv(key)
	if server != "" && (!ok || strings.HasPrefix(set, server)) { // a process started by another inherits its database
		dir, err := dataDirOf(os.Args)
		if turn := os.Getenv(envTestTurn); err == nil && turn != "" {
			err = useNextInstance(dir, turn)
		}
		dir = strings.TrimRight(dir, instanceMarks)
		var database string
		if err == nil {
			database, err = pgtest.Schema(server, fmt.Sprintf("s%x", sha256.Sum256([]byte(dir)))[:24])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Setenv(key, database)
	}
	main()
}

// dataDirOf returns the data directory of a command line.
func dataDirOf(args []string) (string, error) {
	for i, arg := range args {
		if dir, ok := strings.CutPrefix(arg, "--data="); ok {
			return filepath.Abs(dir)
		}
		if arg == "--data" && i+1 < len(args) {
			return filepath.Abs(args[i+1])
		}
	}
	return filepath.Abs(os.Getenv("AGENTMESH_DATA"))
}
