package main

import (
	"bufio"
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

// child is a server in a process of its own, so that its processor time can be told from the client's.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	// What the process says of itself in its first line.
	PID       int    `json:"pid"`
	URL       string `json:"url"` // without a path
	Directory string `json:"directory"`
	Endpoint  string `json:"endpoint"`
	AgentID   string `json:"agent_id"`
}

// stopPatience is how long a child may take to end before it is killed.
const stopPatience = 15 * time.Second

// start runs a program, made with [exec.CommandContext], and reads its first line. script, where it is not nil, is its
// standard input, which stays open until [child.stop].
func start(cmd *exec.Cmd, script any) (*child, error) {
	c := &child{cmd: cmd}
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = stopPatience
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
			err = json.Unmarshal(line, c)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err), c.kill())
	}
	return c, nil
}

// startControl runs a control server of this program.
func startControl(ctx context.Context, sc script) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "control")
	cmd.Stderr = os.Stderr
	return start(cmd, sc)
}

// agentmesh is how the server under test is started: the program as it ships.
type agentmesh struct {
	program string
	dir     string // a folder of our own, for data and logs
}

// free are the documented settings that switch off what is not to be measured: access by approval and every limit on
// messages.
var free = []string{
	"--set", "access.mode=open",
	"--set", "limits.messages_new_conversations=0",
	"--set", "limits.messages_conversation=0",
	"--set", "limits.messages_total=0",
}

// serve starts directory and node in the local profile over dir/data. Its log goes to a file, as it would under a
// service manager.
func (a agentmesh) serve(ctx context.Context, data string, more ...string) (*child, error) {
	return a.serveWith(ctx, nil, data, more...)
}

// serveWith is serve with more in its environment.
func (a agentmesh) serveWith(ctx context.Context, env []string, data string, more ...string) (*child, error) {
	log, err := os.OpenFile(filepath.Join(a.dir, "agentmesh.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append([]string{"serve", "--json", "--listen", "127.0.0.1:0", "--data", data}, free...)
	cmd := exec.CommandContext(ctx, a.program, append(args, more...)...)
	cmd.Stderr, cmd.Env = log, append(os.Environ(), env...)
	return start(cmd, nil)
}

// findAgentmesh returns the program to test: the one named, or the one beside this program, or in the search path.
func findAgentmesh(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "agentmesh"+filepath.Ext(self))
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath("agentmesh")
	if err != nil {
		return "", errors.New("no agentmesh program beside meshbench or in the search path: build it (go build -o bin/ ./cmd/...), or name it with --agentmesh")
	}
	return found, nil
}

// stop ends the process and waits for it.
func (c *child) stop() error {
	c.in.Close() // a control server ends with its input
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(err, c.kill())
	}
	late := time.AfterFunc(stopPatience, func() { c.cmd.Process.Kill() })
	defer late.Stop()
	if err := c.cmd.Wait(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			return err
		}
	}
	return nil
}

// kill ends the process without a chance to tidy up, and waits until it is gone.
func (c *child) kill() error {
	c.in.Close()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	c.cmd.Wait() // says that it was killed
	return nil
}

// cpu returns what the child has used so far.
func (c *child) cpu() time.Duration { return cpuOf(c.PID) }

// cpuOf is [processCPU] where what is not known is 0.
func cpuOf(pid int) time.Duration {
	d, err := processCPU(pid)
	if err != nil {
		return 0
	}
	return d
}

// url returns where the child listens.
func (c *child) url() *url.URL {
	u, err := url.Parse(c.URL)
	if err != nil {
		return &url.URL{}
	}
	return u
}
