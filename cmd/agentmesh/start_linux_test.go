package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// onTerminal runs the program on a terminal on which somebody types keys, and returns what the screen shows.
func onTerminal(t *testing.T, keys string, args ...string) (code int, screen string) {
	t.Helper()
	keyboard, tty := openTerminal(t)
	if _, err := io.WriteString(keyboard, keys); err != nil {
		t.Fatal(err)
	}
	shown := make(chan string, 1)
	go func() {
		var text strings.Builder
		for s := bufio.NewScanner(keyboard); s.Scan(); {
			if line := strings.TrimRight(s.Text(), "\r"); line != "end of test" {
				text.WriteString(line + "\n")
				continue
			}
			break
		}
		shown <- text.String()
	}()
	code = run(t.Context(), args, tty, tty, tty)
	if _, err := io.WriteString(tty, "end of test\n"); err != nil {
		t.Fatal(err)
	}
	return code, <-shown
}

// TestStart: without arguments on a terminal, the program shows five lines about the agent, or offers to start one. Not
// on a terminal, it prints its help.
func TestStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	t.Setenv("AGENTMESH_DATA", dir)
	code, screen := onTerminal(t, "n\n")
	if code != 0 || !strings.Contains(screen, "No agent here yet ("+dir+"). Start one? [Y/n]") || !strings.Contains(screen, "agentmesh demo") {
		t.Errorf("without an agent: %d\n%s", code, screen)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the answer no made a data directory")
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"init", "--name", "Sarah"}, nil, &out, &out); code != 0 {
		t.Fatalf("init: %d %s", code, &out)
	}
	code, screen = onTerminal(t, "")
	if lines := strings.Split(strings.TrimSpace(screen), "\n"); code != 0 || len(lines) != 5 || !strings.HasPrefix(lines[0], "Sarah does not run: agentmesh serve") || lines[2] != "No new messages" {
		t.Errorf("with an agent: %d\n%s", code, screen)
	}
	var help bytes.Buffer
	if code := run(context.Background(), nil, strings.NewReader(""), io.Discard, &help); code != exit.Usage || !strings.HasPrefix(help.String(), "A directory and") {
		t.Errorf("not on a terminal: %d\n%s", code, &help)
	}
}

// TestHelpFitsTheScreen: the main help has at most 32 lines of 80 columns and names every command.
func TestHelpFitsTheScreen(t *testing.T) {
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, nil, &out, &out); code != 0 {
		t.Fatal(code)
	}
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	if len(lines) > 32 {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines {
		if len([]rune(line)) > 80 {
			t.Errorf("too wide: %s", line)
		}
	}
	for _, n := range newParser(&commands{}, io.Discard, io.Discard).Model.Children {
		if !n.Hidden && !strings.Contains(out.String(), n.Name) {
			t.Errorf("%s is not named", n.Name)
		}
	}
}
