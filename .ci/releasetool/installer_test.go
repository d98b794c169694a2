package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestInstaller runs install.sh against folders of a release: it installs what the key of the project signed, also over an
// older program, and nothing else.
func TestInstaller(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a shell script")
	}
	keys := t.TempDir()
	for _, name := range []string{"project", "other"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(keys, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	signer, err := readSigner(filepath.Join(keys, "project"))
	if err != nil {
		t.Fatal(err)
	}
	folder := archiveName("1.2.3", platform{runtime.GOOS, runtime.GOARCH})
	archive := folder + ".tar.gz"
	for _, tc := range []struct {
		name   string
		key    string
		change func(dir string) error // after the signature
		refuse string                 // part of the error; "" if it installs
	}{
		{"as published", "project", nil, ""},
		{"another archive", "project", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, archive), []byte("not what was built"), 0o644)
		}, "the checksum of " + archive + " is wrong"},
		{"another archive with its checksum", "project", func(dir string) error {
			if err := os.WriteFile(filepath.Join(dir, archive), []byte("not what was built"), 0o644); err != nil {
				return err
			}
			return writeSums(dir)
		}, "the signature of the checksums is wrong"},
		{"another key", "other", nil, "the signature of the checksums is wrong"},
		{"no signature", "project", func(dir string) error { return os.Remove(filepath.Join(dir, "SHA256SUMS.sig")) }, "cannot download"},
		{"no archive", "project", func(dir string) error { return os.Remove(filepath.Join(dir, archive)) }, "cannot download"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, bin := t.TempDir(), filepath.Join(t.TempDir(), "bin dir")
			server := httptest.NewServer(http.FileServer(http.Dir(dir)))
			t.Cleanup(server.Close)
			data, err := writeTarGz(folder, []file{{"agentmesh", 0o755, []byte("#!/bin/sh\necho agentmesh 1.2.3\n")}, {"LICENSE", 0o644, nil}}, at)
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range []func() error{
				func() error { return os.WriteFile(filepath.Join(dir, archive), data, 0o644) },
				func() error { return writeInstaller(dir, "1.2.3", server.URL+"/", signer) },
				func() error { return writeSums(dir) },
				func() error { return sign(t.Context(), dir, filepath.Join(keys, tc.key)) },
				func() error {
					if tc.change == nil {
						return nil
					}
					return tc.change(dir)
				},
				func() error { return os.Mkdir(bin, 0o755) },
				func() error {
					return os.WriteFile(filepath.Join(bin, "agentmesh"), []byte("#!/bin/sh\necho old\n"), 0o755)
				},
			} {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("sh", filepath.Join(dir, "install.sh"))
			cmd.Env = append(os.Environ(), "INSTALL_DIR="+bin)
			out, err := cmd.CombinedOutput()
			if (err == nil) != (tc.refuse == "") || !strings.Contains(string(out), tc.refuse) {
				t.Errorf("%v, want %q\n%s", err, tc.refuse, out)
			}
			want := "old"
			if tc.refuse == "" {
				want = "agentmesh 1.2.3"
			}
			if got, err := exec.Command(filepath.Join(bin, "agentmesh")).Output(); err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("the program says %q %v, want %q", got, err, want)
			}
			if left, err := os.ReadDir(bin); err != nil || len(left) != 1 {
				t.Errorf("the folder has %v %v", left, err)
			}
		})
	}
	if err := writeInstaller(t.TempDir(), "1.2.3", "https://files.example", ""); err != nil {
		t.Errorf("without a key: %v", err)
	}
}
