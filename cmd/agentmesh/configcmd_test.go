package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// TestConfigCheckNamesLines: config check names the file, line and key of each invalid value in the file.
func TestConfigCheckNamesLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	text := "name: x\naccess:\n  mode: nonsense\nlog: {level: loud, format: odd}\nhooks:\n  - intent: mesh.schedule\n    inbox: true\n" +
		"  - exec: [./x]\n    webhook: http://x\nwindow:\n  past: 48h\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	args := []string{"config", "check", "--config", file, "--set", "log.format=odder", "--set", "registration.mode=never"}
	if code := run(t.Context(), args, strings.NewReader(""), &out, &out); code != exit.Config {
		t.Errorf("config check = %d, want %d", code, exit.Config)
	}
	for _, want := range []string{
		file + `:3: access.mode: "nonsense" is not one of open`,
		file + `:4: log.level: "loud"`,
		file + `:8: hooks[1]: needs exactly one of`,
		file + `:8: hooks[1].intent: is missing`,
		file + `:11: window.past: must be at most 24h`,
		`agentmesh: log.format: "odder"`, // a flag set it
		`agentmesh: registration.mode: "never"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %s:\n%s", want, out.String())
		}
	}
}

// TestConfigCheckSaysWhatServeSays: files that serve refuses are refused by config check, and those that an editor of
// Windows wrote are accepted by both.
func TestConfigCheckSaysWhatServeSays(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	for _, tt := range []struct {
		name, config string
		content      string
		mode         os.FileMode
		want         string // in the output; "" if the configuration is good
	}{
		{"byte order mark", "hooks: [{intent: mesh.schedule, webhook: 'http://127.0.0.1:1/', secret_file: FILE}]", "\xef\xbb\xbf" + secret + "\r\n", 0o600, ""},
		{"UTF-16", "hooks: [{intent: mesh.schedule, webhook: 'http://127.0.0.1:1/', secret_file: FILE}]", "\xff\xfew\x00h\x00", 0o600, "hooks[0].secret_file: read secret: the file is in UTF-16: save it as UTF-8"},
		{"no webhook secret", "hooks: [{intent: mesh.schedule, webhook: 'http://127.0.0.1:1/', secret_file: FILE}]", "secret", 0o600, "hooks[0].secret_file: a webhook secret must be whsec_"},
		{"notices", "notify: {webhook: 'http://127.0.0.1:1/', secret_file: FILE}", "secret", 0o600, "notify.secret_file: a webhook secret must be whsec_"},
		{"empty", "links: [{name: x, kind: mess, url: 'https://mess.example', token_file: FILE}]", "", 0o600, "is empty"},
		{"open to every user", "links: [{name: x, kind: mess, url: 'https://mess.example', token_file: FILE}]", "secret", 0o604, "links[0].token_file: the file FILE with the secret is open to every user"},
		{"readable by a group", "links: [{name: x, kind: mess, url: 'https://mess.example', token_file: FILE}]", "secret", 0o640, ""},
		{"no age identity", "store: {postgres: host=x, key_file: FILE}", "secret", 0o600, "store.key_file: "},
		{"database", "store: {postgres: 'file:FILE'}", "host=x", 0o644, "store.postgres: the file FILE with the secret is open to every user"},
		{"token in the data directory", "owner_api: {listen: '127.0.0.1:0'}\nagent_door: {token_file: DATA/token}", "", 0o600, "agent_door.token_file: DATA/token lies in the data directory"},
		{"socket in the data directory", "agent_door: {socket: DATA/x/door.sock}", "", 0o600, "agent_door.socket: DATA/x/door.sock lies in the data directory"},
		{"token elsewhere", "owner_api: {listen: '127.0.0.1:0'}\nagent_door: {token_file: DIR/new/token}", "", 0o600, ""},
		{"second document", "name: A\n---\nname: B\n", "", 0o600, "CONFIG:3: a second document begins here"},
		{"password in a URL", "store:\n  postgres: postgres://me:hunter2@db/mesh", "", 0o600, "CONFIG:2: store.postgres: contains a password"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			fill := strings.NewReplacer("FILE", filepath.Join(dir, "file"), "DATA", filepath.Join(dir, "data"), "DIR", dir, "CONFIG", filepath.Join(dir, "c.yaml")).Replace
			for name, text := range map[string]string{"c.yaml": fill(tt.config), "file": tt.content} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(filepath.Join(dir, "file"), tt.mode); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			args := []string{"--data", filepath.Join(dir, "data"), "config", "check", "--config", filepath.Join(dir, "c.yaml")}
			code := run(t.Context(), args, strings.NewReader(""), &out, &out)
			if good := tt.want == ""; good != (code == exit.OK) || !strings.Contains(out.String(), fill(tt.want)) || strings.Contains(out.String(), "hunter2") {
				t.Errorf("config check = %d %s, want %q", code, out.String(), fill(tt.want))
			}
		})
	}
}

// TestPasswordIsNoArgument: no command takes a password of a database where other users see it.
func TestPasswordIsNoArgument(t *testing.T) {
	for _, args := range [][]string{
		{"db", "import", "postgres://me:hunter2@db/mesh"},
		{"db", "import", "host=db password=hunter2"},
		{"config", "check", "--set", "store.postgres=postgres://me:hunter2@db/mesh"},
		{"config", "check", "--set", "store.listen_url=host=db password=hunter2"},
	} {
		var out bytes.Buffer
		code := run(t.Context(), append([]string{"--data", t.TempDir()}, args...), strings.NewReader(""), &out, &out)
		if code == exit.OK || !strings.Contains(out.String(), "contains a password") || strings.Contains(out.String(), "hunter2") {
			t.Errorf("%v = %d %s", args[:2], code, out.String())
		}
	}
}

// TestKeyFilesOfEditors: a byte order mark in a key file is ignored, and UTF-16 is named.
func TestKeyFilesOfEditors(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "key")
	if code, _, errOut := runCommand("keys", "generate", name); code != exit.OK {
		t.Fatal(errOut)
	}
	key, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	wide := []byte("\xff\xfe")
	for _, c := range key {
		wide = append(wide, c, 0)
	}
	draft := filepath.Join(dir, "message")
	if err := os.WriteFile(draft, []byte(`{"agentmesh":"0.1.0","message_id":"msg_1","conversation_id":"conv_1","from":"am_a","to":"am_b","timestamp":"2026-01-01T00:00:00Z","intent":"mesh.message","payload":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"\ufeff" + string(key): "", string(wide): "UTF-16"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errOut := runCommand("message", "sign", "--key", name, draft)
		if (code == exit.OK) != (want == "") || !strings.Contains(errOut, want) {
			t.Errorf("sign with a key that begins with %q = %d %s", text[:2], code, errOut)
		}
	}
}
