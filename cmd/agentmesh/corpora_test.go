package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// corpora returns a folder of third-party test data, or skips.
func corpora(t *testing.T, elem ...string) string {
	t.Helper()
	root := os.Getenv("AGENTMESH_CORPORA")
	if root == "" {
		t.Skip("AGENTMESH_CORPORA names no folder with test data")
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// files lists the files of a folder that match.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, dir, err)
	}
	return names
}

// try runs a command in this process.
func try(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// The command prints what RFC 8785's own test data wants, byte for byte, and refuses what is no object.
func TestCanonicalCommandOnJCS(t *testing.T) {
	dir := corpora(t, "jcs-cyberphone", "testdata")
	for _, name := range files(t, filepath.Join(dir, "input"), "*.json") {
		input, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, "output", filepath.Base(name)))
		if err != nil {
			t.Fatal(err)
		}
		code, out, errOut := try("message", "canonical", name)
		if !bytes.HasPrefix(bytes.TrimSpace(input), []byte("{")) {
			if code != exit.Input {
				t.Errorf("%s: exit %d, want %d: it is no object", filepath.Base(name), code, exit.Input)
			}
			continue
		}
		if code != exit.OK || out != strings.TrimRight(string(want), "\n") {
			t.Errorf("%s: exit %d, %s\n got %s\nwant %s", filepath.Base(name), code, errOut, out, want)
		}
	}
}

// Every text of JSONTestSuite that is no JSON is exit 65 and one line; every object that is JSON passes, but for
// duplicate keys.
func TestCanonicalCommandOnJSONTestSuite(t *testing.T) {
	dir := corpora(t, "jsontestsuite", "test_parsing")
	for _, name := range files(t, dir, "n_*.json") {
		if code, out, errOut := try("message", "canonical", name); code != exit.Input || out != "" || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: exit %d, printed %q and %q", filepath.Base(name), code, out, errOut)
		}
	}
	for _, name := range files(t, dir, "y_object*.json") {
		want := exit.OK
		if strings.Contains(name, "duplicated_key") {
			want = exit.Input
		}
		if code, _, errOut := try("message", "canonical", name); code != want {
			t.Errorf("%s: exit %d, want %d: %s", filepath.Base(name), code, want, errOut)
		}
	}
}

// THREATS 28: no naughty string gets a control character to the terminal.
func TestCleanOnNaughtyStrings(t *testing.T) {
	data, err := os.ReadFile(corpora(t, "blns", "blns.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		for _, r := range terminal.Clean(s) {
			if terminal.Unseen(r) {
				t.Errorf("clean(%q) lets %U through", s, r)
			}
		}
	}
}
