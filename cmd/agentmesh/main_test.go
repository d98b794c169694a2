package main

import (
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/signing"
)

var update = goldentest.Update

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "6") // scripts mostly wait for processes; -parallel overrides it
	signing.PassphraseWork = 2     // also applies to the processes that scripts start
	if os.Getenv("GOGC") == "" {
		os.Setenv("GOGC", "400") // for these processes: many start, run for milliseconds and end
	}
	testscript.Main(m, map[string]func(){
		"agentmesh": mainOnTestServer,
	})
}

// panicking is a writer that panics.
type panicking struct{}

func (panicking) Write([]byte) (int, error) { panic("broken") }

// TestPanic checks that a panic of a command ends the process, and that the command does not look successful.
func TestPanic(t *testing.T) {
	defer func() {
		if p := recover(); p != "broken" {
			t.Errorf("the panic is %v", p)
		}
	}()
	t.Errorf("exit code %d after a panic", run(t.Context(), []string{"version"}, nil, panicking{}, io.Discard))
}

// TestEveryCommandHasHelp: every command and every flag has a help text.
func TestEveryCommandHasHelp(t *testing.T) {
	var cli commands
	for _, node := range newParser(&cli, os.Stdout, os.Stderr).Model.Leaves(true) {
		if node.Help == "" {
			t.Errorf("%s has no help", node.FullPath())
		}
		for _, f := range node.Flags {
			if f.Help == "" {
				t.Errorf("%s --%s has no help", node.FullPath(), f.Name)
			}
		}
	}
}

var ansi = regexp.MustCompile("\x1b")

// TestClean: a stranger's text cannot move the cursor, ring the bell, or reorder the line (THREATS 28).
func TestClean(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"plain text, Zoë, 日本語 🎉", "plain text, Zoë, 日本語 🎉"},
		{"a\x1b[31mred", "a\uFFFD[31mred"},
		{"a\u009b31m", "a\uFFFD31m"},
		{"line\nbreak\ttab\r", "line break tab "},
		{"\u202eevil\u2066", "\uFFFDevil\uFFFD"},
		{"\ufeffbom\u200b", "\uFFFDbom\uFFFD"},
		{"bad\xff\xfeutf8", "bad\uFFFDutf8"},
		{"\u2028\u2029\x00\x7f", "\uFFFD\uFFFD\uFFFD\uFFFD"},
	} {
		if got := terminal.Clean(tc.in); got != tc.want || ansi.MatchString(got) {
			t.Errorf("Clean(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

// TestReportCleans: error texts are cleaned, because they may contain a peer's text.
func TestReportCleans(t *testing.T) {
	errOut, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer errOut.Close()
	run(context.Background(), []string{"message", "canonical", "no\x1b[2Jsuch"}, nil, os.Stdout, errOut)
	data, err := os.ReadFile(errOut.Name())
	if err != nil || len(data) == 0 || ansi.Match(data) {
		t.Errorf("standard error is %q, %v", data, err)
	}
}
