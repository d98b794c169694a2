// Package subprocess runs one of the owner's commands on data that strangers wrote.
//
// The exec hook, notices, the MoltSpeak secret command and MESS thread folders (for git) use it. No shell reads the
// arguments. Strangers' data goes only to standard input (AM-74); one exception is the ref of a MESS thread, which git
// gets as an argument after a check. The package knows nothing about messages. Start with [Command.Run].
package subprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// defaultPath is the environment of a command if the configuration sets none.
const defaultPath = "PATH=/usr/local/bin:/usr/bin:/bin"

const (
	tailSize  = 4 << 10         // bytes of standard error that are kept for the log
	killGrace = 2 * time.Second // from the end of the command, or its kill, until its pipes are closed
)

// ErrOutputTooLarge means that the command wrote more than MaxOutput and was killed.
var ErrOutputTooLarge = errors.New("the command wrote too much to standard output")

// Command is a program of the owner. It is safe for concurrent use.
type Command struct {
	Argv []string // Argv[0] is looked up in the PATH of this process; Run adds no arguments
	Dir  string   // empty: the directory of this process
	// Env is the whole environment. Nil: a PATH with the usual directories, and nothing from this process.
	Env       []string
	User      string // name or id of the user that runs the command, with its groups; empty: the user of this process
	MaxOutput int    // maximum bytes of standard output
	// Stdout gets the output while the command runs; an error of Stdout kills the command, and Run returns the error.
	// Nil: Run returns the output in Result.Output.
	Stdout io.Writer
}

// Result is the output of a command.
type Result struct {
	Output []byte
	Tail   string // the end of standard error; not safe to print on a terminal
}

// Run runs the command with input on its standard input, until the command or ctx ends. Then it kills the rest of the
// command's process group; a process that has left the group survives. On Windows, it kills the process tree, but not
// if the command exits on its own. If the command failed after its start, Result.Tail has details.
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
	var output bytes.Buffer
	out := &cappedWriter{dst: c.Stdout, remaining: c.MaxOutput, stop: cancel}
	if c.Stdout == nil {
		out.dst = &output
	}
	tail := &tailWriter{}
	cmd.Stdout, cmd.Stderr = out, tail
	cmd.WaitDelay = killGrace
	setProcessGroup(cmd)
	if c.User != "" {
		if err := switchUser(cmd, c.User); err != nil {
			return Result{}, err
		}
	}
	err := cmd.Run()
	killGroup(cmd) // ends the processes that the command left running
	result := Result{Output: output.Bytes(), Tail: tail.String()}
	switch {
	case out.err != nil:
		return Result{Tail: result.Tail}, out.err
	case ctx.Err() != nil && err != nil:
		return result, fmt.Errorf("killed: %w", context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay):
		return result, nil // the command succeeded; a child that held its pipes was killed
	case errors.Is(err, syscall.EACCES):
		return result, fmt.Errorf("run: %w; make the program executable with chmod +x", err)
	case errors.Is(err, syscall.ENOEXEC):
		return result, fmt.Errorf("run: %w; a script needs a first line such as #!/bin/sh", err)
	case err != nil:
		return result, fmt.Errorf("run: %w", err)
	}
	return result, nil
}

// cappedWriter passes a limited number of bytes on. If more are written, or dst returns an error, it calls stop.
type cappedWriter struct {
	dst       io.Writer
	remaining int   // number of bytes that may still be written
	err       error // why it stopped
	stop      func(error)
}

func (w *cappedWriter) Write(p []byte) (int, error) {
	if w.err == nil {
		if w.remaining -= len(p); w.remaining < 0 {
			w.err = ErrOutputTooLarge
		} else {
			_, w.err = w.dst.Write(p)
		}
		if w.err != nil {
			w.stop(w.err)
		}
	}
	if w.err != nil {
		return 0, w.err
	}
	return len(p), nil
}

// tailWriter keeps the last tailSize bytes.
type tailWriter struct{ buf []byte }

func (w *tailWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p[max(0, len(p)-tailSize):]...)
	if excess := len(w.buf) - tailSize; excess > 0 {
		w.buf = append(w.buf[:0], w.buf[excess:]...)
	}
	return len(p), nil
}

func (w *tailWriter) String() string { return string(bytes.ToValidUTF8(w.buf, []byte("?"))) }
