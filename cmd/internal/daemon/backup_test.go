package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/store"
)

// halfBackup is a store that copies only a part of the database.
type halfBackup struct{ store.Store }

func (halfBackup) Backup(_ context.Context, w io.Writer) (int64, error) {
	n, err := io.CopyN(w, rand.Reader, 1<<20) // which does not compress, so the answer begins
	return n, errors.Join(err, errors.New("the disk is broken"))
}

// TestIncompleteBackup: a command that writes a backup to standard output fails if the backup fails halfway, in its own
// process or in another one.
func TestIncompleteBackup(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	o, err := loadOptions(t, dir, config.Source{File: filepath.Join(dir, "agentmesh.yaml"), Settings: []config.Setting{{Key: "roles", Value: "directory"}}})
	if err != nil {
		t.Fatal(err)
	}
	local, err := openLocal(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	local.Local.store = store.Observe(halfBackup{local.Local.store})
	if err := local.Local.owner.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- local.Local.owner.Serve(ctx) }()
	defer func() { stop(); <-served }()
	remote := Running(t.Context(), dir)
	if remote == nil {
		t.Fatal("nothing answers on the owner's socket")
	}
	defer remote.Close()
	for name, c := range map[string]*Client{"this process": local, "another process": remote} {
		resp, err := c.Do(t.Context(), http.MethodPost, "backup", nil, struct{}{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer resp.Body.Close()
		if err := datadir.CopyArchive(io.Discard, resp.Body, nil); err == nil {
			t.Errorf("%s: the copy of half an archive succeeds", name)
		}
	}
}
