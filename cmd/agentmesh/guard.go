package main

import (
	"cmp"
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

type guardCmd struct {
	Test guardTestCmd `cmd:"" help:"Ask the configured guard about a text, without a peer and without storing anything."`
}

type guardTestCmd struct {
	Direction string `arg:"" enum:"in,out" help:"in: a text for your agent; out: one that your agent wrote."`
	File      string `arg:"" optional:"" help:"File with a payload or a message, or - for standard input. Default: a sample."`
	Intent    string `default:"mesh.message" help:"Intent of the payload."`
}

func (c *guardTestCmd) Run(ctx context.Context, a *app) (err error) {
	t := guard.Text{
		Direction: guard.Direction(c.Direction), Peer: "am_guard-test", Conversation: "conv_guard-test", Intent: wire.Intent(c.Intent),
		Payload: hook.TextPayload(wire.Deliver, "This is a test of your guard."),
	}
	if c.File != "" {
		if t.Payload, err = a.readObject(c.File); err != nil {
			return err
		}
		if inner, ok := t.Payload.Get("payload"); ok && t.Payload.GetStr("message_id") != "" {
			t.Intent, t.Peer = wire.Intent(t.Payload.GetStr("intent")), cmp.Or(t.Payload.GetStr("from"), t.Peer)
			t.Payload = inner
		}
	}
	src, err := a.source()
	if err != nil {
		return err
	}
	trial, err := daemon.TryGuard(ctx, src, t)
	if err != nil {
		return err
	}
	return cmp.Or(a.report(trial, func() { c.show(a, trial) }), exit.Unless(trial.OK, exit.Unavailable))
}

func (c *guardTestCmd) show(a *app, t guard.Trial) {
	a.Print("input: %s", terminal.CleanJSON(t.Input))
	a.showRun(t.Stderr, t.Exit, t.Took)
	if t.Reason != "" {
		a.Print("reason: %s", terminal.Clean(t.Reason))
	}
	if t.OK {
		a.Print("verdict: %s", t.Verdict)
		return
	}
	a.Print("verdict: %s, because the guard gave none: %s", t.Verdict, terminal.Clean(t.Failure))
}
