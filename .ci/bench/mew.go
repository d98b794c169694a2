package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

type mewCmd struct {
	fanout
	Rate int `default:"50000" help:"Deliveries per second in the rounds with the gateway's logs on."`
}

// mewChat is a chat to everybody in a MEW space. It has all fields, so the gateway adds nothing.
var mewChat = messageKind{path: "/ws", greets: true, message: func(mark, number string) string {
	return padMessage(`{"protocol":"mew/v0.4","id":"`+mark+number+`","ts":"2026-01-01T00:00:00.000Z","from":"p0","kind":"chat","payload":{"text":"`, `"}}`)
}}

func (c *mewCmd) Run(ctx context.Context, s streams) error {
	if c.Rate < 1 {
		return errors.New("--rate must be 1 or more")
	}
	start := func(ctx context.Context, program, dir string, n int, env ...string) (*host, error) {
		return startGateway(ctx, program, dir, n, withoutLogs, env...)
	}
	return c.compare(ctx, s, entrant{messageKind: mewChat, start: start, measureExtra: c.measureWithLogs})
}

// measureWithLogs runs rounds at the fixed rate with the gateway's logs on, and counts the deliveries in them.
func (c *mewCmd) measureWithLogs(ctx context.Context, s streams, program, dir string, n int) (t caseResult, err error) {
	t.name = fmt.Sprintf("%d receivers, logs on, %d/s", n, c.Rate)
	g, err := startGateway(ctx, program, dir, n, withLogs)
	if err != nil {
		return t, err
	}
	client, err := newLoadClient(ctx, g, mewChat, n)
	if err != nil {
		return t, errors.Join(err, g.stop())
	}
	for r := range c.Rounds {
		s.p.say("%s: round %d of %d", t.name, r+1, c.Rounds)
		const maxBatch = 64
		batch := min(maxBatch, max(1, c.Rate/(4*n))) // the messages of a quarter of a second
		round, err := client.runAtRate(ctx, batch, c.Duration, c.Rate)
		if err != nil {
			return t, errors.Join(err, g.stop())
		}
		t.samples = append(t.samples, round)
	}
	client.close()
	if err := g.stop(); err != nil {
		return t, err
	}
	t.expected = client.sent * int64(n+1) // the sender gets its own messages too
	t.lines, err = countLines(filepath.Join(dir, "logs"), `"event":"delivered"`, client.mark)
	return t, err
}

// The two ways to start the gateway: with its log of envelopes and its log of decisions about capabilities, or without.
const (
	withLogs    = true
	withoutLogs = false
)

// startGateway runs `agentmesh mew gateway` in dir, with a space for the clients of a [host] with n receivers.
func startGateway(ctx context.Context, program, dir string, n int, logs bool, env ...string) (*host, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	token := func(i int) string { return fmt.Sprintf("bench-token-%d", i) }
	var b strings.Builder
	b.WriteString("space: {id: bench, name: Bench}\nparticipants:\n")
	for i := range n + 2 {
		fmt.Fprintf(&b, "  p%d: {tokens: [%s], capabilities: [chat]}\n", i, token(i))
	}
	fmt.Fprintf(&b, "gateway_logging: {enabled: %t}\n", logs)
	file := filepath.Join(dir, "space.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "mew", "gateway", "--port", "0", "--log-level", "error", "--space-config", file)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	c, err := startChild(cmd, nil, func(c *child, line []byte) error {
		port, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "Gateway listening on port ")
		if !ok {
			return fmt.Errorf("its first line names no port: %q", line)
		}
		c.PID, c.URL = c.cmd.Process.Pid, "http://127.0.0.1:"+port
		return nil
	})
	return &host{c, token}, err
}

// countLines counts the lines in the .jsonl files of dir that contain both first and second.
func countLines(dir, first, second string) (int64, error) {
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
			if strings.Contains(line, first) && strings.Contains(line, second) {
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
