package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// child is a process of agentmesh serve that the demo started.
type child struct {
	name  string
	info  daemon.ServeInfo
	owner *daemon.Client
	cmd   *exec.Cmd
	log   string // file with the standard error of the process
}

// spawn starts serve with args and waits until it answers. self is the path of this program.
func (d *demo) spawn(ctx context.Context, self, name string, args ...string) (*child, error) {
	c := &child{name: name, log: filepath.Join(d.dir, name+".log")}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	data := filepath.Join(d.dir, name)
	c.cmd = exec.Command(self, append([]string{"serve", "--json", "--data=" + data, "--listen=127.0.0.1:0", "--set=log.format=text"}, args...)...)
	c.cmd.Stderr = log
	c.cmd.Env = cleanEnviron(d.Environ)
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := c.awaitStart(ctx, out); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), c.stop(), c.logError())
	}
	if c.owner = daemon.Running(ctx, data); c.owner == nil {
		return nil, errors.Join(fmt.Errorf("start %s: its owner API does not answer", name), c.stop())
	}
	d.children = append(d.children, c)
	return c, nil
}

// cleanEnviron removes the variables that configure agentmesh, so that the demo is the same on every machine.
func cleanEnviron(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
}

// awaitStart reads the line with the addresses that serve prints when it answers.
func (c *child) awaitStart(ctx context.Context, out io.Reader) error {
	line := make(chan error, 1)
	go func() {
		data, err := bufio.NewReader(out).ReadBytes('\n')
		if err != nil {
			line <- errors.New("the process ended before it answered")
			return
		}
		line <- json.Unmarshal(data, &c.info)
	}()
	select {
	case err := <-line:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *child) stop() error {
	if c.owner != nil {
		c.owner.Close()
	}
	if runtime.GOOS == "windows" { // cannot interrupt another process
		c.cmd.Process.Kill()
		c.cmd.Wait()
		return nil
	}
	c.cmd.Process.Signal(os.Interrupt)
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s failed: %w", c.name, err)
		}
		return nil
	case <-time.After(15 * time.Second):
		c.cmd.Process.Kill()
		return fmt.Errorf("%s did not stop", c.name)
	}
}

func (d *demo) stop() (err error) {
	for _, c := range slices.Backward(d.children) {
		err = errors.Join(err, c.stop())
	}
	return err
}

// logError returns an error with the end of the process's log, or nil if the log is empty.
func (c *child) logError() error {
	data, err := os.ReadFile(c.log)
	if err != nil || len(data) == 0 {
		return err
	}
	return fmt.Errorf("%s wrote: %s", c.name, data[max(0, len(data)-2000):])
}

func (d *demo) logErrors() (err error) {
	for _, c := range d.children {
		err = errors.Join(err, c.logError())
	}
	return err
}

// poll calls done until it returns true or an error, or ctx ends. If ctx ends, the error begins with prefix.
func poll(ctx context.Context, prefix string, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if !waiting.Pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s: %w", prefix, ctx.Err())
		}
	}
}

func (c *child) awaitRegistration(ctx context.Context) error {
	return poll(ctx, c.name+"'s agent is not listed", func() (bool, error) {
		s, err := daemon.Fetch(ctx, c.owner, owner.ShowStatus.Call())
		if err != nil {
			return false, err
		}
		for _, d := range s.Directories {
			if d.Expires.IsZero() {
				return false, nil
			}
		}
		return len(s.Directories) > 0, nil
	})
}

func (c *child) awaitCompletion(ctx context.Context, conv string) (state string, err error) {
	err = poll(ctx, c.name+"'s conversation is not completed", func() (bool, error) {
		v, err := daemon.Fetch(ctx, c.owner, owner.ShowConversation.Call(conv))
		state = string(v.State)
		return state == "completed", err
	})
	return state, err
}

// propose sends a proposal for an event and returns its conversation.
func (c *child) propose(ctx context.Context, to wire.AgentID, title, length string, times ...time.Time) (conv string, err error) {
	var texts []string
	for _, t := range times {
		texts = append(texts, t.Format(time.RFC3339))
	}
	event := wire.Obj(wire.TextField("title", title), wire.Field("proposed_times", wire.Texts(texts)), wire.TextField("duration", length))
	s, err := daemon.Fetch(ctx, c.owner, owner.SendMessage.With(owner.NewMessage{
		To: string(to), Intent: wire.Schedule, Payload: wire.Obj(wire.TextField("action", "propose"), wire.Field("event", event)), WaitSeconds: daemon.SendWait,
	}))
	if err == nil && s.State != owner.SendDelivered {
		err = fmt.Errorf("the message is %s: %s", s.State, s.Err)
	}
	return string(s.Conversation), err
}
