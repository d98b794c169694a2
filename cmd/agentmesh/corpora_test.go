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

// corpora returns a folder of third-party test data, or skips the test.
func corpora(t *testing.T, elem ...string) string {
	t.Helper()
	root := os.Getenv("AGENTMESH_CORPORA")
	if root == "" {
		t.Skip("AGENTMESH_CORPORA names no folder with test data")
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// mustGlob returns the files in a folder that match a pattern. It fails the test if no file matches.
func mustGlob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, dir, err)
	}
	return names
}

// runCommand runs a command in this process and returns its exit code and outputs.
func runCommand(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// TestCanonicalCommandOnJCS: message canonical prints the expected bytes for RFC 8785, and refuses non-objects.
func TestCanonicalCommandOnJCS(t *testing.T) {
	dir := corpora(t, "jcs-cyberphone", "testdata")
	for _, name := range mustGlob(t, filepath.Join(dir, "input"), "*.json") {
		input, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, "output", filepath.Base(name)))
		if err != nil {
			t.Fatal(err)
		}
		code, out, errOut := runCommand("message", "canonical", name)
		if !bytes.HasPrefix(bytes.TrimSpace(input), []byte("{")) || filepath.Base(name) == "values.json" { // which has 1e30 (AM-12)
			if code != exit.Input {
				t.Errorf("%s: exit %d, want %d: it is not an object, or has a number beyond 2^53-1", filepath.Base(name), code, exit.Input)
			}
			continue
		}
		if code != exit.OK || out != strings.TrimRight(string(want), "\n") {
			t.Errorf("%s: exit %d, %s\n got %s\nwant %s", filepath.Base(name), code, errOut, out, want)
		}
	}
}

// TestCanonicalCommandOnJSONTestSuite: message canonical exits with 65 and one line for every invalid text of
// JSONTestSuite, and accepts every valid object except those with duplicate keys and with
// numbers beyond 2^53-1 (AM-12).
func TestCanonicalCommandOnJSONTestSuite(t *testing.T) {
	dir := corpora(t, "jsontestsuite", "test_parsing")
	for _, name := range mustGlob(t, dir, "n_*.json") {
		if code, out, errOut := runCommand("message", "canonical", name); code != exit.Input || out != "" || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: exit %d, printed %q and %q", filepath.Base(name), code, out, errOut)
		}
	}
	for _, name := range mustGlob(t, dir, "y_object*.json") {
		want := exit.OK
		if strings.Contains(name, "duplicated_key") || strings.Contains(name, "extreme_numbers") {
			want = exit.Input
		}
		if code, _, errOut := runCommand("message", "canonical", name); code != want {
			t.Errorf("%s: exit %d, want %d: %s", filepath.Base(name), code, want, errOut)
		}
	}
}

// TestCleanOnNaughtyStrings: Clean removes control characters from the Big List of Naughty Strings (THREATS 28).
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
			if terminal.IsUnsafe(r) {
				t.Errorf("Clean(%q) contains %U", s, r)
			}
		}
	}
}
