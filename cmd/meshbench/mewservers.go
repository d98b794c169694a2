package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed relay/relay.js
var relayScript string

// fetchWS installs the ws package below dir.
func fetchWS(ctx context.Context, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "ws@8")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install ws (name a folder that has it with --modules, or --no-relay): %w: %.300s", err, out)
	}
	return dir, nil
}

// startRelay runs the control.
func startRelay(ctx context.Context, modules string) (*child, error) {
	abs, err := filepath.Abs(filepath.Join(modules, "node_modules"))
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("NODE_PATH", abs); err != nil {
		return nil, err
	}
	return start(ctx, os.Stderr, nil, "node", "-e", relayScript)
}

// gatewayChild is `agentmesh mew gateway` over a folder of its own.
type gatewayChild struct {
	child *child
}

func (g *gatewayChild) stop() error { return g.child.stop() }

// token is that of receiver i; 0 is the sender.
func (g *gatewayChild) token(i int) string { return fmt.Sprintf("bench-token-%d", i) }

// startGateway serves a space with n receivers.
func startGateway(ctx context.Context, program, dir string, n int, logs bool, env ...string) (*gatewayChild, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	g := &gatewayChild{}
	var b strings.Builder
	b.WriteString("space: {id: bench, name: Bench}\nparticipants:\n")
	for i := range n + 2 {
		fmt.Fprintf(&b, "  p%d: {tokens: [%s], capabilities: [chat]}\n", i, g.token(i))
	}
	fmt.Fprintf(&b, "gateway_logging: {enabled: %t}\n", logs)
	file := filepath.Join(dir, "space.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, program, "mew", "gateway", "--port", "0", "--log-level", "error", "--space-config", file)}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(os.Interrupt) }
	c.cmd.WaitDelay = stopPatience
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	port, ok := strings.CutPrefix(strings.TrimSpace(line), "Gateway listening on port ")
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("start the gateway: %q: %w", line, err), c.kill())
	}
	c.PID, c.URL = c.cmd.Process.Pid, "http://127.0.0.1:"+port
	g.child = c
	return g, nil
}

// countLines counts the lines below dir that hold both marks.
func countLines(dir, one, other string) (int64, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return 0, err
	}
	var n int64
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		in := bufio.NewReaderSize(f, 1<<16)
		for {
			line, err := in.ReadString('\n')
			if strings.Contains(line, one) && strings.Contains(line, other) {
				n++
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return 0, errors.Join(err, f.Close())
			}
		}
		if err := f.Close(); err != nil {
			return 0, err
		}
	}
	return n, nil
}
