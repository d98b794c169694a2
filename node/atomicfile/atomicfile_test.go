package atomicfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"first, and longer", "second"} {
		if err := atomicfile.Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("file = %q, %v, want %q", got, err, text)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("mode = %v, want 0600", info.Mode())
	}
}

// TestFailedWrite: a write that fails half-way keeps the old file and leaves no temporary file.
func TestFailedWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := atomicfile.Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("the disk is full")
	err := atomicfile.WriteFunc(path, func(f *os.File) error {
		_, err := f.WriteString("ne")
		return errors.Join(err, full)
	})
	if !errors.Is(err, full) {
		t.Errorf("WriteFunc = %v, want what fill returned", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("file = %q, %v, want the old one", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the directory holds %v, %v, want one file", left, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "file"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Write into a missing directory = %v, want fs.ErrNotExist", err)
	}
}

func TestWriteNew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := atomicfile.WriteNew(path, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.WriteNew(path, []byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second WriteNew = %v, want fs.ErrExist", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "first" {
		t.Errorf("file = %q, %v, want the first one", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the directory holds %v, %v, want one file", left, err)
	}
}

// TestWriteIn: a link under the temporary name is not written through, and a link that leads out of the root is
// refused.
func TestWriteIn(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := os.WriteFile(outside, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, ".file.tmp")); err != nil {
		t.Skipf("no links here: %v", err)
	}
	if err := atomicfile.WriteIn(root, "file", []byte("ours")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "theirs" {
		t.Errorf("file outside = %q, %v, want it untouched", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "ours" {
		t.Errorf("file = %q, %v, want ours", got, err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.WriteIn(root, "link/file", nil); err == nil {
		t.Error("WriteIn through a link out of the root = nil, want an error")
	}
}
