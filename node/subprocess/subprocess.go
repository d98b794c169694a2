// Package subprocess runs one of the owner's commands on data that strangers wrote.
//
// It is for the exec hook and for notices. The argument vector comes from the configuration and no shell reads it;
// what a stranger wrote goes to standard input alone (AM-74). It knows nothing of messages. Start with [Command.Run].
package subprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// defaultPath is all that a command inherits where the configuration sets no environment.
const defaultPath = "PATH=/usr/local/bin:/usr/bin:/bin"

const (
	tailSize  = 4 << 10         // of standard error, for the log
	killGrace = 2 * time.Second // until the pipes of a killed command are closed by force
)

// ErrOutputTooLarge: the command wrote more than it may. It was killed.
var ErrOutputTooLarge = errors.New("the command wrote too much")

// Command is a program of the owner's. It is safe for concurrent use.
type Command struct {
	Argv []string // Argv[0] is looked up in the PATH of this process; nothing is added to it
	Dir  string   // empty: that of this process
	// Env is the whole environment. Nil: a PATH of the usual places, and nothing of this process.
	Env       []string
	MaxOutput int // bytes of standard output
}

// Result is what a command wrote.
type Result struct {
	Output []byte
	Tail   string // the end of standard error; the caller must not trust it with a terminal
}

// Run runs the command with input on its standard input until it ends or ctx does. Then its whole process group is
// killed, so that nothing it started outlives it. Of an error that came after the start, Result.Tail says more.
func (c Command) Run(ctx context.Context, input []byte) (Result, error) {
	if len(c.Argv) == 0 {
		return Result{}, errors.New("the command is empty")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Dir, cmd.Env = c.Dir, c.Env
	if cmd.Env == nil {
		cmd.Env = []string{defaultPath}
	}
	cmd.Stdin = bytes.NewReader(input)
	out := &capped{max: c.MaxOutput, over: func() { cancel(ErrOutputTooLarge) }}
	tail := &tailWriter{}
	cmd.Stdout, cmd.Stderr = out, tail
	cmd.WaitDelay = killGrace
	ownGroup(cmd)
	err := cmd.Run()
	killGroup(cmd) // what it left behind
	result := Result{Output: out.buf.Bytes(), Tail: tail.String()}
	switch {
	case out.full:
		return Result{Tail: result.Tail}, ErrOutputTooLarge
	case ctx.Err() != nil && err != nil:
		return result, fmt.Errorf("killed: %w", context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay):
		return result, nil // it ended well; a child held its pipes, and is dead now
	case err != nil:
		return result, fmt.Errorf("run: %w", err)
	}
	return result, nil
}

// capped keeps at most max bytes and says when there were more.
type capped struct {
	buf  bytes.Buffer
	max  int
	full bool
	over func()
}

func (w *capped) Write(p []byte) (int, error) {
	if w.full || w.buf.Len()+len(p) > w.max {
		w.full = true
		w.over()
		return 0, ErrOutputTooLarge
	}
	return w.buf.Write(p)
}

// tailWriter keeps the last bytes.
type tailWriter struct{ buf []byte }

func (w *tailWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p[max(0, len(p)-tailSize):]...)
	if over := len(w.buf) - tailSize; over > 0 {
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(p), nil
}

func (w *tailWriter) String() string { return string(bytes.ToValidUTF8(w.buf, []byte("?"))) }
