package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/agentmesh/agentmesh/signing"
)

// TestSecretsReadsEveryRetiredAge: Secrets reads every retired age identity, and not only the first ones by name.
func TestSecretsReadsEveryRetiredAge(t *testing.T) {
	d := Dir(t.TempDir())
	keys := Keys{}
	if err := keys.AddNew(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := d.SaveKeys(keys); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.Path(DirRetired), 0o700); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 5 {
		key, err := GenerateKey(string(signing.KindAge))
		if err != nil {
			t.Fatal(err)
		}
		if err := signing.WriteKeyFile(filepath.Join(d.Path(DirRetired), fmt.Sprintf("%s.%d", FileAge, i+1)), key, nil); err != nil {
			t.Fatal(err)
		}
		want = append(want, key.Public().Fingerprint())
	}
	s, err := d.Secrets(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, key := range s.OldAgeKeys {
		got = append(got, key.Public().Fingerprint())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("retired identities %v, want %v", got, want)
	}
}

// TestOpenClosesAnEmptyDirectory: the empty directory of mkdir is closed to other users; one with a file is refused.
func TestOpenClosesAnEmptyDirectory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes on Windows")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode = %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a directory with a file, open to other users, was opened")
	}
}
