package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestFinishReplace: Open finishes a restore from every state in which a kill can leave it after the decision point.
func TestFinishReplace(t *testing.T) {
	const id = "20260101-000000.000"
	for name, tt := range map[string]struct {
		// The files in the data directory and its folders: old and moved are from before the restore, the others are
		// from the archive.
		old, moved, replace, place, final []string
		keeps                             []string // the files in replaced-TIME afterwards
	}{
		"decided":           {old: []string{"a", "b", "old"}, replace: []string{"a", "b", "c"}, keeps: []string{"a", "b", "old"}},
		"half moved away":   {old: []string{"b"}, moved: []string{"a", "old"}, replace: []string{"a", "b", "c"}, keeps: []string{"a", "b", "old"}},
		"all moved away":    {moved: []string{"a", "b"}, replace: []string{"a", "b", "c"}, keeps: []string{"a", "b"}},
		"directory empty":   {replace: []string{"a", "b", "c"}},
		"nothing in place":  {moved: []string{"a"}, place: []string{"a", "b", "c"}, keeps: []string{"a"}},
		"half in place":     {moved: []string{"a"}, final: []string{"a"}, place: []string{"b", "c"}, keeps: []string{"a"}},
		"only the database": {moved: []string{"a"}, final: []string{"a", "b", "c"}, place: []string{}, keeps: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := Dir(filepath.Join(t.TempDir(), "data"))
			put := func(dir, content string, names []string) {
				for _, n := range names {
					if err := os.MkdirAll(dir, 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(dir, n), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			put(string(h), "old", tt.old)
			put(h.Path(prefixReplaced+id), "old", tt.moved)
			put(h.Path(prefixReplace+id), "new", tt.replace)
			put(h.Path(prefixPlace+id), "new", tt.place)
			put(string(h), "new", tt.final)
			database := prefixPlace
			if tt.replace != nil {
				database = prefixReplace
			}
			if err := os.MkdirAll(h.Path(database+id), 0o700); err != nil {
				t.Fatal(err)
			}
			s, err := bolt.Open(t.Context(), filepath.Join(h.Path(database+id), FileDatabase), bolt.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(string(h)); exit.Code(err) != exit.Unavailable {
				t.Errorf("Open while another process finishes the restore = %v, want exit code %d", err, exit.Unavailable)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time there is nothing to do
				if _, err := Open(string(h)); err != nil {
					t.Fatal(err)
				}
			}
			want := []string{"a", "b", "c"}
			entries, err := os.ReadDir(string(h))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() == FileDatabase || e.Name() == FileDatabase+".index" || e.Name() == prefixReplaced+id && tt.keeps != nil {
					continue
				}
				if len(want) == 0 || e.Name() != want[0] {
					t.Fatalf("the directory holds %v", entries)
				}
				want = want[1:]
				if data, err := os.ReadFile(h.Path(e.Name())); err != nil || string(data) != "new" {
					t.Errorf("%s is %q, %v", e.Name(), data, err)
				}
			}
			if _, err := os.Stat(h.Path(FileDatabase)); err != nil || len(want) > 0 {
				t.Errorf("missing: %v, %v", want, err)
			}
			for _, n := range tt.keeps {
				if data, err := os.ReadFile(filepath.Join(h.Path(prefixReplaced+id), n)); err != nil || string(data) != "old" {
					t.Errorf("kept %s is %q, %v", n, data, err)
				}
			}
		})
	}
}

// TestReplaceMakesRoom: folders that a restore leaves in place, such as replaced-TIME of an earlier restore, make room
// for folders of the archive with the same names. A restore that could not move them continues.
func TestReplaceMakesRoom(t *testing.T) {
	const earlier = prefixReplaced + "20260101-000000.000"
	stage := func(t *testing.T, d Dir, name string) string {
		t.Helper()
		for _, folder := range []string{earlier, "lost+found", name + "/" + earlier, name + "/lost+found"} {
			if err := os.MkdirAll(d.Path(folder), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(d.Path(folder), "a"), []byte(strings.Split(folder, "/")[0]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := bolt.Open(t.Context(), filepath.Join(d.Path(name), FileDatabase), bolt.Config{})
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return d.Path(name)
	}
	check := func(t *testing.T, d Dir, kept, name string) {
		t.Helper()
		for _, folder := range []string{earlier, "lost+found"} {
			if data, err := os.ReadFile(filepath.Join(d.Path(folder), "a")); string(data) != name {
				t.Errorf("%s has %q, %v, want the file of the archive", folder, data, err)
			}
			if data, err := os.ReadFile(filepath.Join(kept, folder, "a")); string(data) != folder {
				t.Errorf("%s in the kept folder has %q, %v, want the old file", folder, data, err)
			}
		}
	}
	t.Run("restore", func(t *testing.T) {
		d := Dir(t.TempDir())
		kept, err := d.replaceWith(stage(t, d, PrefixRestore+"1"))
		if err != nil {
			t.Fatal(err)
		}
		check(t, d, kept, PrefixRestore+"1")
	})
	t.Run("continue", func(t *testing.T) {
		d := Dir(filepath.Join(t.TempDir(), "data"))
		stage(t, d, prefixPlace+"2")
		if _, err := Open(string(d)); err != nil {
			t.Fatal(err)
		}
		check(t, d, d.Path(prefixReplaced+"2"), prefixPlace+"2")
	})
}

// TestRestoreLocks: whatever the directory contains, a restore excludes other restores, imports and processes that
// use PostgreSQL, and each of these excludes a restore.
func TestRestoreLocks(t *testing.T) {
	for name, files := range map[string][]string{
		"empty":             nil,
		"database missing":  {FileCard},
		"database damaged":  {FileDatabase},
		"import unfinished": {bolt.ImportPath(FileDatabase)},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir(t.TempDir())
			for _, f := range files {
				if err := os.WriteFile(d.Path(f), []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			release, err := d.lockForRestore(len(files) > 0)
			if err != nil {
				t.Fatal(err)
			}
			stage := d.Path(PrefixRestore + "1")
			if err := os.Mkdir(stage, 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := d.lockForRestore(len(files) > 0); !errors.Is(err, ErrInUse) {
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
			if _, err := d.lockForRestore(len(files) > 0); !errors.Is(err, ErrInUse) {
				t.Errorf("a restore beside a process with the lock: %v, want %v", err, ErrInUse)
			}
			unlock()
			release, err = d.lockForRestore(len(files) > 0)
			if err != nil {
				t.Fatal(err)
			}
			release()
			if _, err := os.Stat(stage); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder of a killed restore: %v", err)
			}
		})
	}
}
