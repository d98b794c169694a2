package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// child is a server in its own process, so that its processor time can be measured apart from the client's.
type child struct {
	cmd *exec.Cmd
	in  io.Closer // standard input of the process
	// The following fields come from the first line that the process prints: JSON, except for a MEW gateway.
	PID       int    `json:"pid"`
	URL       string `json:"url"` // without a path
	Directory string `json:"directory"`
	Endpoint  string `json:"endpoint"`
	OwnerAPI  string `json:"owner_api"`
	AgentID   string `json:"agent_id"`
}

// stopTimeout is how long a child may take to exit before it is killed.
const stopTimeout = 15 * time.Second

// startChild starts a program, made with [exec.CommandContext], and reads its first line of output with parse. If script
// is not nil, the program gets it as JSON on standard input, which stays open until [child.stop].
func startChild(cmd *exec.Cmd, script any, parse func(c *child, line []byte) error) (*child, error) {
	c := &child{cmd: cmd}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = stopTimeout
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.in = in
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if script != nil {
		err = json.NewEncoder(in).Encode(script)
	}
	if err == nil {
		var line []byte
		if line, err = bufio.NewReader(out).ReadBytes('\n'); err == nil {
			err = parse(c, line)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err), c.kill())
	}
	return c, nil
}

// parseInfo reads the line of JSON that a child prints first.
func parseInfo(c *child, line []byte) error { return json.Unmarshal(line, c) }

// startControl starts this program as a control server, which answers every request with the response in sc.
func startControl(ctx context.Context, sc script) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "control")
	cmd.Stderr = os.Stderr
	return startChild(cmd, sc, parseInfo)
}

// agentmesh is the program under test. It runs in its usual configuration, except for noLimits.
type agentmesh struct {
	program string
	dir     string // directory for data and logs
}

// noLimits are the settings that switch off what must not be measured: approvals, and limits on messages.
var noLimits = []string{
	"--set", "access.mode=open",
	"--set", "limits.messages_new_conversations=0",
	"--set", "limits.messages_conversation=0",
	"--set", "limits.messages_total=0",
}

// serve starts a directory and a node on a free loopback port. The log goes to a file, as under a service manager.
func (a agentmesh) serve(ctx context.Context, data string, more ...string) (*child, error) {
	return a.serveWith(ctx, nil, data, more...)
}

// serveWith works like serve, with additional environment variables.
func (a agentmesh) serveWith(ctx context.Context, env []string, data string, more ...string) (*child, error) {
	log, err := os.OpenFile(filepath.Join(a.dir, "agentmesh.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append([]string{"serve", "--json", "--listen", "127.0.0.1:0", "--data", data}, noLimits...)
	cmd := exec.CommandContext(ctx, a.program, append(args, more...)...)
	cmd.Stderr, cmd.Env = log, append(os.Environ(), env...)
	c, err := startChild(cmd, nil, parseInfo)
	if errors.Is(err, io.EOF) { // it ended before its first line
		err = errors.Join(err, logError(log.Name()))
	}
	return c, err
}

// logError returns the last line of a log as an error, or nil if the log is empty.
func logError(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil
	}
	return fmt.Errorf("%.1000s", data[bytes.LastIndexByte(data, '\n')+1:])
}

// findAgentmesh returns file, or if file is empty, agentmesh in the directory of this program or in PATH.
func findAgentmesh(file string) (string, error) {
	if file != "" {
		return file, nil
	}
	if self, err := os.Executable(); err == nil {
		sibling := filepath.Join(filepath.Dir(self), "agentmesh"+filepath.Ext(self))
		if _, err := os.Stat(sibling); err == nil {
			return sibling, nil
		}
	}
	found, err := exec.LookPath("agentmesh")
	if err != nil {
		return "", errors.New("there is no agentmesh program in the directory of meshbench or in PATH: build it (go build -o bin/ ./cmd/agentmesh), or pass it with --agentmesh")
	}
	return found, nil
}

func (c *child) stop() error {
	c.in.Close() // a control server exits at the end of its input
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(err, c.kill())
	}
	killer := time.AfterFunc(stopTimeout, func() { c.cmd.Process.Kill() })
	defer killer.Stop()
	if err := c.cmd.Wait(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			return err
		}
	}
	return nil
}

func (c *child) kill() error {
	c.in.Close()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	c.cmd.Wait() // returns an error because the process was killed
	return nil
}

func (c *child) cpu() time.Duration { return cpuOf(c.PID) }

// cpuOf is [processCPU], but returns 0 if the time is unknown.
func cpuOf(pid int) time.Duration {
	d, err := processCPU(pid)
	if err != nil {
		return 0
	}
	return d
}

func (c *child) url() *url.URL {
	u, err := url.Parse(c.URL)
	if err != nil {
		return &url.URL{}
	}
	return u
}
