//go:build slow

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMCPEndsOnSignal: a client that ends the process with SIGTERM sees no error, after bad input too.
func TestMCPEndsOnSignal(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	mustRun(t, data, "init")
	mustServe(t, data)
	agent := exec.Command(agentmeshBinary(os.Environ()), "mcp", "--data", data)
	var stderr strings.Builder
	agent.Stderr = &stderr
	in, err := agent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := agent.StdoutPipe()
	if err == nil {
		err = agent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Process.Kill() })
	out := bufio.NewReader(stdout)
	for _, step := range [][2]string{
		{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, `"id":1`},
		{"hello", "-32700"}, {`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, `"id":3`},
	} {
		_, err := io.WriteString(in, step[0]+"\n")
		if answer, readErr := out.ReadString('\n'); err != nil || readErr != nil || !strings.Contains(answer, step[1]) {
			t.Fatalf("%s: %.200s, %v, %v", step[0], answer, err, readErr)
		}
	}
	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v, stderr %q", err, stderr.String())
	}
}
