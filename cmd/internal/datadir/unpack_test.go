package datadir

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// TestUnpackRefuses: a restore writes nothing outside its directory, whatever names an archive contains.
func TestUnpackRefuses(t *testing.T) {
	tests := []struct {
		name string
		mode fs.FileMode
	}{
		{"../evil", 0o600}, {"hooks/../../evil", 0o600}, {"/evil", 0o600}, {"", 0o600}, {"./evil", 0o600}, {"hooks//evil", 0o600},
		{"evil/", fs.ModeDir | 0o700}, {"link", fs.ModeSymlink | 0o777}, {"pipe", fs.ModeNamedPipe | 0o600},
		{"pid", 0o600}, {httpapi.SocketFile, 0o600}, {"agentmesh.db.index", 0o600}, {".signing.key.123", 0o600}, {"twice", 0o600},
		{dirPlace + "/" + FileConfig, 0o600}, {httpapi.SocketFile, 0o600}, {"hooks/" + PrefixRestore + "1/run", 0o600},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "data")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			names := []string{tt.name}
			if tt.name == "twice" {
				names = append(names, tt.name)
			}
			if err := unpack(newArchive(t, tt.mode, names...), dir); err == nil {
				t.Error("unpack accepted the archive")
			}
			if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
				t.Errorf("beside the directory: %v, %v", entries, err)
			}
		})
	}
}

// TestManifestFormat: an archive of a later format, or without a format, is refused before any of it is unpacked.
func TestManifestFormat(t *testing.T) {
	for text, refused := range map[string]bool{
		`{"format":1}`:    false,
		`{"format":2}`:    true,
		`{"format":0}`:    true,
		`{}`:              true,
		`{"format":"1"}`:  true,
		`{"format":1} {}`: true,
	} {
		var out bytes.Buffer
		z := zip.NewWriter(&out)
		f, err := z.Create(fileManifest)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
		if err != nil {
			t.Fatal(err)
		}
		_, err = readManifest(r)
		if (err != nil) != refused || refused && (!goldentest.Refuses(t, text, err) || exit.Code(err) != exit.Input) {
			t.Errorf("%s: %v, refused must be %t", text, err, refused)
		}
	}
}

// TestUnpackModes: private files stay readable only for the owner, whatever mode the archive gives them, and unpack
// applies only the permission bits of a mode.
func TestUnpackModes(t *testing.T) {
	dir := t.TempDir()
	if err := unpack(newArchive(t, 0o755|fs.ModeSetuid, FileKey, FileDatabase, "retired-keys/old", "hooks/run"), dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{FileKey: 0o600, FileDatabase: 0o600, "retired-keys/old": 0o600, "hooks/run": 0o755} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode(); got != want && filepath.Separator == '/' {
			t.Errorf("%s has mode %v, want %v", name, got, want)
		}
	}
}

func newArchive(t *testing.T, mode fs.FileMode, names ...string) *zip.Reader {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, name := range names {
		header := &zip.FileHeader{Name: name}
		header.SetMode(mode)
		f, err := z.CreateHeader(header)
		if err == nil && !strings.HasSuffix(name, "/") {
			_, err = f.Write([]byte("text"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil && r == nil {
		t.Fatal(err)
	}
	return r
}
