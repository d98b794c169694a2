package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner/web"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestUndo: if a serve does not start with a changed configuration, the undo restores the file behind a symbolic link,
// its mode, and a removed token. It removes an added token. It undoes all changes since the last start.
func TestUndo(t *testing.T) {
	dir := t.TempDir()
	file, target, token := filepath.Join(dir, "agentmesh.yaml"), filepath.Join(dir, "dotfiles.yaml"), filepath.Join(dir, "links", "lab.token")
	const text = "name: Me\nlinks:\n- name: lab\n  kind: mew\n  url: wss://lab.example\n  token_file: links/lab.token\n"
	if err := os.Mkdir(filepath.Dir(token), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{target: text, token: "secret\n"} {
		if err := os.WriteFile(path, []byte(data), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("dotfiles.yaml", file); err != nil {
		t.Skip(err)
	}
	c := configChanger{&Process{src: config.Source{File: file}, dataDir: datadir.Dir(dir), rerun: &rerun{stop: func() {}}}}
	check := func(path, want string) {
		t.Helper()
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != want {
			t.Errorf("%s has %q, %v", path, data, err)
		}
	}
	if _, err := c.remove(t.Context(), "lab"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(token); !os.IsNotExist(err) {
		t.Errorf("the token is left: %v", err)
	}
	if err := c.p.rerun.takeUndo()(); err != nil {
		t.Fatal(err)
	}
	check(target, text)
	check(token, "secret\n")
	if info, err := os.Lstat(file); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the symbolic link is now %v, %v", info, err)
	}

	if _, err := c.add(t.Context(), NewLink{Name: "den", Kind: "mew", URL: "wss://den.example", Space: "den", Token: "other"}); err != nil {
		t.Fatal(err)
	}
	if err := c.p.rerun.takeUndo()(); err != nil {
		t.Fatal(err)
	}
	check(target, text)
	if _, err := os.Stat(filepath.Join(dir, "links", "den.token")); !os.IsNotExist(err) {
		t.Errorf("the token of a link that was not added is left: %v", err)
	}

	// Two changes before the process starts again.
	if _, err := c.add(t.Context(), NewLink{Name: "den", Kind: "mew", URL: "wss://den.example", Space: "den", Token: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.remove(t.Context(), "lab"); err != nil {
		t.Fatal(err)
	}
	c.p.rerun.restart() // for another reason than a change
	if err := c.p.rerun.takeUndo()(); err != nil {
		t.Fatal(err)
	}
	check(target, text)
	check(token, "secret\n")
	if _, err := os.Stat(filepath.Join(dir, "links", "den.token")); !os.IsNotExist(err) {
		t.Errorf("the token of the first of two changes is left: %v", err)
	}
}

// TestUndoProfile: if a serve does not start after the owner has saved a profile, for example because somebody edited
// another part of the file, the old file is back, and the serve goes on.
func TestUndoProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agentmesh.yaml")
	const text = "name: Me\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Process{src: config.Source{File: file}, rerun: &rerun{stop: func() {}}}
	if err := (setup{p}).SaveProfile(t.Context(), web.Profile{Name: "You"}); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) == text {
		t.Errorf("the profile is not in the file: %q, %v", data, err)
	}
	undo := p.rerun.takeUndo()
	if undo == nil {
		t.Fatal("nothing undoes the change")
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != text {
		t.Errorf("after the undo, the file has %q, %v", data, err)
	}
	err := (setup{p}).SaveProfile(t.Context(), web.Profile{Name: strings.Repeat("x", 257)})
	if _, isFault := errors.AsType[*wire.Error](err); err == nil || isFault || p.rerun.takeUndo() != nil {
		t.Errorf("a name that is too long: %v", err)
	}
}

// TestProfileJoins: a link to join a directory can stand among the addresses in the owner's form. The directory of the first
// one keeps the mail of a node that nobody can reach, the codes are kept apart, and an undo takes all of it back.
func TestProfileJoins(t *testing.T) {
	dir := t.TempDir()
	file, invites := filepath.Join(dir, "agentmesh.yaml"), filepath.Join(dir, datadir.FileInvites)
	if err := os.WriteFile(file, []byte("name: Me\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &Process{src: config.Source{File: file}, dataDir: datadir.Dir(dir), rerun: &rerun{stop: func() {}}}
	directories := []string{"https://a.example/v1", "https://b.example/join#CODE-1", "https://c.example/join", "https://b.example/v1"}
	if err := (setup{p}).SaveProfile(t.Context(), web.Profile{Name: "Me", Directories: directories}); err != nil {
		t.Fatal(err)
	}
	cfg, err := p.src.LoadAndCheck(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"https://a.example/v1", "https://b.example/v1", "https://c.example/v1"}; !slices.Equal(cfg.Directories, want) || cfg.ViaRelay != "https://b.example/v1" {
		t.Errorf("directories %v, via_relay %s", cfg.Directories, cfg.ViaRelay)
	}
	codes, err := p.src.InviteCode("invite_file", cfg.InviteFile)
	if code, _ := client.InviteFor(codes, "https://b.example/v1"); err != nil || code != "CODE-1" {
		t.Errorf("the code for the directory is %q (%v)", codes, err)
	}
	if err := p.rerun.takeUndo()(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(invites); !os.IsNotExist(err) {
		t.Errorf("after the undo the codes are left: %v", err)
	}
}
