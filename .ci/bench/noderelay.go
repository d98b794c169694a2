package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed relay/relay.js
var relayScript string

// fetchWS installs the npm package ws in dir.
func fetchWS(ctx context.Context, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "ws@8")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install ws (pass a directory that has it with --modules, or use --no-relay): %w: %.300s", err, out)
	}
	return dir, nil
}

// startRelay starts the Node.js relay. modules is the directory that has node_modules/ws.
func startRelay(ctx context.Context, modules string) (*host, error) {
	abs, err := filepath.Abs(filepath.Join(modules, "node_modules"))
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("NODE_PATH", abs); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "node", "-e", relayScript)
	cmd.Stderr = os.Stderr
	c, err := startChild(cmd, nil, parseInfo)
	return &host{c, func(int) string { return "" }}, err
}
