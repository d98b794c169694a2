package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestQuickstartAsks: quickstart asks for what no flag sets, offers defaults, and asks again after a wrong choice.
func TestQuickstartAsks(t *testing.T) {
	keyboard, screen := openTerminal(t)
	dir := filepath.Join(t.TempDir(), "dir")
	ended := make(chan int, 1)
	go func() {
		var out strings.Builder
		ended <- run(t.Context(), []string{"--data", dir, "quickstart", "directory", "mesh.example.org"}, screen, &out, screen)
	}()
	read := bufio.NewReader(keyboard)
	for _, step := range []struct{ question, answer string }{
		{"title of the public pages [Agents of mesh.example.org]: ", "Agents of Cork"},
		{"whose terms you accept) or proxy: ", "maybe"},
		{"whose terms you accept) or proxy: ", "proxy"},
		{"is published (empty: none): ", ""},
		{"who may register (invite, open, closed) [invite]: ", "somebody"},
		{"who may register (invite, open, closed) [invite]: ", "open"},
	} {
		var seen strings.Builder
		for !strings.HasSuffix(seen.String(), step.question) {
			c, err := read.ReadByte()
			if err != nil {
				t.Fatalf("no question %q after %q: %v", step.question, seen.String(), err)
			}
			seen.WriteByte(c)
		}
		if _, err := keyboard.WriteString(step.answer + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	go func() { _, _ = read.WriteTo(&strings.Builder{}) }()
	if code := <-ended; code != 0 {
		t.Fatalf("exit code %d", code)
	}
	data, err := os.ReadFile(filepath.Join(dir, "agentmesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: \"Agents of Cork\"", "mode: open", "listen: 127.0.0.1:3141", "# contact:"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the configuration lacks %q:\n%s", want, data)
		}
	}
}
