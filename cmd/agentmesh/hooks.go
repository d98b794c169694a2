package main

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

type hooksCmd struct {
	Test hooksTestCmd `cmd:"" help:"Run the configured hook of an intent with a sample message, without a peer and without storing anything."`
}

type hooksTestCmd struct {
	Intent string `arg:"" help:"Intent of the message, for example mesh.message."`
	File   string `arg:"" optional:"" help:"File with the payload, or - for standard input. Default: a sample for the intent."`
}

type hookReport struct {
	Route string `json:"route"`
	hook.Trial
}

func (c *hooksTestCmd) Run(ctx context.Context, a *app) (err error) {
	payload, err := wire.ParseObject([]byte((&sendFlags{Intent: c.Intent}).examplePayload()))
	if c.Intent == string(wire.Deliver) {
		payload = hook.TextPayload(wire.Deliver, "This is a test of your hook.")
	}
	if c.File != "" {
		payload, err = a.readObject(c.File)
	}
	if err != nil {
		return err
	}
	src, err := a.source()
	if err != nil {
		return err
	}
	route, trial, err := daemon.TryHook(ctx, src, wire.Intent(c.Intent), payload)
	if err != nil {
		return err
	}
	err = a.report(hookReport{route, trial}, func() { c.show(a, route, trial) })
	return cmp.Or(err, exit.Unless(trial.OK, exit.Unavailable))
}

func (c *hooksTestCmd) show(a *app, route string, t hook.Trial) {
	a.Print("hook: %s", terminal.Clean(route))
	a.Print("input: %s", terminal.CleanJSON(t.Input))
	for _, p := range t.Progress {
		a.Print("progress: %s", terminal.CleanJSON(p.JSON()))
	}
	if t.Output != "" {
		a.Print("output: %s", terminal.Clean(t.Output))
	}
	if len(t.Answer) > 0 {
		a.Print("answer: %s", terminal.CleanJSON(t.Answer))
	}
	a.showRun(t.Stderr, t.Exit, t.Took)
	verdict := "ok"
	if !t.OK {
		verdict = "failed"
	}
	a.Print("verdict: %s: %s", verdict, terminal.Clean(t.Verdict))
}

// showRun prints how the program of a hook or of the guard ran. exit is its exit status, and 0 if it had none.
func (a *app) showRun(stderr string, exit int, took time.Duration) {
	for line := range strings.Lines(stderr) {
		a.Print("stderr: %s", terminal.Clean(strings.TrimRight(line, "\r\n")))
	}
	if exit != 0 {
		a.Print("exit status: %d", exit)
	}
	a.Print("time: %s", took.Round(time.Millisecond))
}
