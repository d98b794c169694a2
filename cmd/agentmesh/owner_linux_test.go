//go:build slow

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// TestRootOnAServicesFiles: compact and restore as root refuse a data directory of another user, and change nothing.
func TestRootOnAServicesFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Parallel()
	const service = 65532
	data, empty := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "empty")
	archive := filepath.Join(t.TempDir(), "archive.zip")
	mustRun(t, data, "init")
	mustRun(t, data, "backup", archive)
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	database := datadir.Dir(data).Path(datadir.FileDatabase)
	for _, path := range []string{data, database, empty} {
		if err := os.Chown(path, service, service); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{data, "compact"}, {empty, "restore", archive}} {
		if out := runAt(t, args[0], exit.Config, args[1:]...); !bytes.Contains(out, []byte("sudo -u '#65532'")) {
			t.Errorf("agentmesh %v: %s", args, out)
		}
	}
	info, err := os.Stat(database)
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != service || info.Mode().Perm() != 0o600 {
		t.Errorf("the database is %v, %v", info, err)
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
		t.Errorf("the restore left %v, %v", left, err)
	}
}
