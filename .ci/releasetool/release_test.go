package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	at    = time.Date(2026, 11, 21, 4, 5, 6, 0, time.UTC)
	files = []file{{"README.md", 0o644, []byte("read me\n")}, {"agentmesh", 0o755, []byte{0x7f, 'E', 'L', 'F', 0}}, {"completions/agentmesh.bash", 0o644, []byte("complete\n")}}
)

// TestArchives: an archive has every file with mode and time, and the same bytes in any order and time zone.
func TestArchives(t *testing.T) {
	type entry struct {
		Name string
		Mode int64
		Data string
		At   time.Time
	}
	read := map[string]func(t *testing.T, data []byte) []entry{
		"tar.gz": func(t *testing.T, data []byte) (out []entry) {
			z, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if z.Name != "" || !z.ModTime.IsZero() {
				t.Errorf("the gzip header tells a name %q or a time %v", z.Name, z.ModTime)
			}
			for r := tar.NewReader(z); ; {
				h, err := r.Next()
				if errors.Is(err, io.EOF) {
					return out
				}
				if err != nil {
					t.Fatal(err)
				}
				if h.Uid != 0 || h.Gid != 0 || h.Uname != "root" {
					t.Errorf("%s belongs to %d %d %s", h.Name, h.Uid, h.Gid, h.Uname)
				}
				content, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, entry{h.Name, h.Mode, string(content), h.ModTime.UTC()})
			}
		},
		"zip": func(t *testing.T, data []byte) (out []entry) {
			z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range z.File {
				content, err := z.Open(f.Name)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(content)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, entry{f.Name, int64(f.Mode()), string(text), f.Modified.UTC()})
			}
			return out
		},
	}
	var want []entry
	for _, f := range files {
		want = append(want, entry{"folder/" + f.name, int64(f.mode), string(f.data), at})
	}
	for name, write := range map[string]func(string, []file, time.Time) ([]byte, error){"tar.gz": writeTarGz, "zip": writeZip} {
		t.Run(name, func(t *testing.T) {
			one, err := write("folder", files, at)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, read[name](t, one)); diff != "" {
				t.Errorf("read back (-want +got):\n%s", diff)
			}
			turned := slices.Clone(files)
			slices.Reverse(turned)
			other, err := write("folder", turned, at.In(time.FixedZone("east", 5*3600)))
			if err != nil || !bytes.Equal(one, other) {
				t.Errorf("another order and zone made other bytes, %v", err)
			}
		})
	}
}

// TestLicences: the license of every module in the binary is found, and a module without one is an error.
func TestLicences(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-C", "../..", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}", "./cmd/agentmesh").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		path, dir, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok || seen[path] {
			continue
		}
		seen[path] = true
		if _, err := readDependency(dependency{path: path}, dir); err != nil {
			t.Error(err)
		}
	}
	if len(seen) < 10 {
		t.Errorf("%d modules were found: the test sees too little", len(seen))
	}
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "license.go"), []byte("package license\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readDependency(dependency{path: "example.org/bare"}, empty); err == nil || !strings.Contains(err.Error(), "example.org/bare") {
		t.Errorf("a module without a license: %v", err)
	}
}

func TestCompare(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	put := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(a, "one", "x")
	put(b, "one", "x")
	if n, err := compare(a, b); n != 1 || err != nil {
		t.Errorf("compare() = %d, %v", n, err)
	}
	if err := writeSums(a); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(a, "SHA256SUMS"))
	if want := "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  one\n"; err != nil || string(list) != want {
		t.Errorf("SHA256SUMS is %q, %v", list, err)
	}
	if _, err := compare(a, b); err == nil {
		t.Error("compare does not report a file that only one directory has")
	}
	put(b, "SHA256SUMS", "other")
	if _, err := compare(a, b); err == nil || !strings.Contains(err.Error(), "SHA256SUMS differs") {
		t.Errorf("compare() = %v", err)
	}
}

// TestPublish: a release appears complete, even in place of an empty directory, and never replaces another release.
func TestPublish(t *testing.T) {
	parent := t.TempDir()
	out := filepath.Join(parent, "out")
	for _, name := range []string{"first", "second"} {
		stage := filepath.Join(parent, name)
		if err := os.Mkdir(stage, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(stage, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "first" {
			if err := os.Mkdir(out, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := publish(stage, out); (err == nil) != (name == "first") {
			t.Errorf("publish(%s) = %v", name, err)
		}
	}
	entries, err := os.ReadDir(out)
	if err != nil || len(entries) != 2 || entries[0].Name() != "SHA256SUMS" || entries[1].Name() != "first" {
		t.Errorf("published: %v, %v", entries, err)
	}
}

// TestSign: ssh-keygen accepts the signature that -sign writes, and rejects it for a changed list.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is not installed")
	}
	dir := t.TempDir()
	key, list := filepath.Join(dir, "key"), filepath.Join(dir, "SHA256SUMS")
	if err := os.WriteFile(list, []byte("sum  name\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := output(t.Context(), dir, os.Environ(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key); err != nil {
		t.Fatal(err)
	}
	if err := sign(t.Context(), dir, key); err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(key + ".pub")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "signers"), append([]byte("releases "), public...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{"sum  name\n": true, "another  name\n": false} {
		cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", "signers", "-I", "releases", "-n", signatureNamespace, "-s", "SHA256SUMS.sig")
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); (err == nil) != good {
			t.Errorf("%q: %v\n%s", text, err, out)
		}
	}
	if err := sign(t.Context(), dir, filepath.Join(dir, "none")); err == nil {
		t.Error("a missing key signed")
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"next"}, {"1.0"}, {"v1.0.0; rm"}, {"0.1.0", "a", "b"}, {"-no", "0.1.0"}} {
		if err := run(t.Context(), args, io.Discard); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("run(%q) = %v", args, err)
		}
	}
	if err := run(t.Context(), []string{"-platforms", "plan9/386", "0.1.0"}, io.Discard); err == nil || !strings.Contains(err.Error(), "plan9/386") {
		t.Errorf("run() = %v", err)
	}
	if got, err := parsePlatforms("linux/arm64,windows/amd64"); err != nil || !slices.Equal(got, []platform{{"linux", "arm64"}, {"windows", "amd64"}}) {
		t.Errorf("parsePlatforms() = %v, %v", got, err)
	}
}

// TestFormula: the formula has the address and the checksum of every archive that Homebrew can install.
func TestFormula(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []platform{{"darwin", "arm64"}, {"linux", "amd64"}, {"windows", "amd64"}} {
		if err := os.WriteFile(filepath.Join(dir, archiveName("1.2.3", p)+".tar.gz"), []byte(p.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeFormula(dir, "1.2.3", "https://files.example/v1.2.3/"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "agentmesh.rb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  on_macos do\n    on_arm do\n      url \"https://files.example/v1.2.3/agentmesh_1.2.3_darwin_arm64.tar.gz\"\n      sha256 \"", "  on_linux do\n    on_intel do\n",
		hex.EncodeToString(sha256Of("linux/amd64")),
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the formula lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "windows") {
		t.Error("the formula has an archive for Windows")
	}
}

func sha256Of(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}
