package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/registration"
)

// TestSecretsStaySecret runs a serve with debug logging and many commands, and searches all their output for the
// secrets of the data directory (THREATS 29).
func TestSecretsStaySecret(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	server, err := startServe(dir, []string{"--set=log.level=debug", "--set=owner_api.listen=127.0.0.1:0"}, env)
	if err != nil {
		t.Fatal(err)
	}
	before := secretsIn(t, dir, server.info)
	var out bytes.Buffer
	for _, args := range [][]string{
		{"status"}, {"card", "show"}, {"keys", "show"}, {"keys", "rotate"}, {"register"}, {"discover"}, {"withdraw"}, {"register", "--json"},
		{"send", "am_nobody", "hello"}, {"peers"}, {"inbox", "--json"}, {"config", "check", "--json"}, {"token", "list", "--json"}, {"version"},
	} {
		run(context.Background(), append([]string{"--data", dir}, args...), strings.NewReader(""), &out, &out)
	}
	server.Process.Signal(os.Interrupt)
	server.Wait()
	run(context.Background(), []string{"--data", dir, "check", "--json"}, strings.NewReader(""), &out, &out)
	out.WriteString(server.log.String())
	if !strings.Contains(out.String(), `"level":"DEBUG"`) {
		t.Error("the log has no debug lines, so the test proves little")
	}
	for name, secret := range before {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the output contains the secret %s", name)
		}
	}
}

func secretsIn(t *testing.T, dir string, w daemon.ServeInfo) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range []string{datadir.FileKey, datadir.FileAge, datadir.FileCredential, "owner.token"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "-----") {
				out[name] = line
			}
		}
	}
	own := &client.Directory{Base: w.Directory, Alias: daemon.OwnDirectory}
	out["bearer"] = string(registration.Credential(client.Credential(out[datadir.FileCredential]), own))
	return out
}
