package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestFinishRestore: Open finishes a restore from every state in which a kill can leave it after the decision point.
func TestFinishRestore(t *testing.T) {
	for name, tt := range map[string]struct{ place, final []string }{
		"decided":           {place: []string{"a", "b", "c"}},
		"half in place":     {place: []string{"b", "c"}, final: []string{"a"}},
		"only the database": {final: []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir(filepath.Join(t.TempDir(), "data"))
			if err := os.MkdirAll(d.Path(dirPlace), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, n := range tt.place {
				if err := os.WriteFile(filepath.Join(d.Path(dirPlace), n), []byte("new"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range tt.final {
				if err := os.WriteFile(d.Path(n), []byte("new"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := bolt.Open(t.Context(), filepath.Join(d.Path(dirPlace), FileDatabase), bolt.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(string(d)); exit.Code(err) != exit.Unavailable {
				t.Errorf("Open while another process finishes the restore = %v, want exit code %d", err, exit.Unavailable)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time there is nothing to do
				if _, err := Open(string(d)); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range []string{"a", "b", "c"} {
				if data, err := os.ReadFile(d.Path(n)); err != nil || string(data) != "new" {
					t.Errorf("%s is %q, %v", n, data, err)
				}
			}
			if _, err := os.Stat(d.Path(FileDatabase)); err != nil || exists(d.Path(dirPlace)) {
				t.Errorf("database: %v, folder of the restore left: %t", err, exists(d.Path(dirPlace)))
			}
		})
	}
}

// TestRestoreLocks: a restore excludes other restores, imports and processes that use PostgreSQL, and each of these
// excludes a restore.
func TestRestoreLocks(t *testing.T) {
	d := Dir(t.TempDir())
	release, err := d.lockForRestore()
	if err != nil {
		t.Fatal(err)
	}
	stage := d.Path(PrefixRestore + "1")
	if err := os.Mkdir(stage, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.lockForRestore(); !errors.Is(err, ErrInUse) {
		t.Errorf("a second restore: %v, want %v", err, ErrInUse)
	}
	if _, _, err := d.OpenStore(t.Context(), bolt.Config{}); !errors.Is(err, ErrInUse) {
		t.Errorf("a process that opens the database during a restore: %v, want %v", err, ErrInUse)
	}
	if _, err := os.Stat(stage); err != nil {
		t.Errorf("the folder of the running restore: %v", err)
	}
	release()
	if _, err := os.Stat(d.Path(FileLock)); !errors.Is(err, os.ErrNotExist) && runtime.GOOS != "windows" {
		t.Errorf("the restore left its lock: %v", err)
	}

	unlock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.lockForRestore(); !errors.Is(err, ErrInUse) {
		t.Errorf("a restore beside a process with the lock: %v, want %v", err, ErrInUse)
	}
	unlock()
	release, err = d.lockForRestore()
	if err != nil {
		t.Fatal(err)
	}
	release()
	if _, err := os.Stat(stage); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a killed restore: %v", err)
	}
}
