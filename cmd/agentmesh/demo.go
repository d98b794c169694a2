package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/demo"
	"github.com/agentmesh/agentmesh/node/wire"
)

type demoCmd struct {
	Keep bool `help:"Keep directory and agents running until ctrl-c."`
}

func (c *demoCmd) Run(ctx context.Context, a *app) error {
	return demo.Run(ctx, demo.Options{UI: &a.UI, Environ: a.environ, Keep: c.Keep, JSON: a.globals.JSON})
}

// demoHookCmd is the agent of a person in the demo.
type demoHookCmd struct {
	Name string `arg:""`
}

func (c *demoHookCmd) Run(_ context.Context, a *app) error {
	call, err := a.readObject("-")
	if err != nil {
		return err
	}
	if answer, ok := demo.Answer(c.Name, call); ok {
		a.Print("%s", wire.Obj(wire.Field("payload", answer)).JSON())
	}
	return nil
}
