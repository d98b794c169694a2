package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

type pageCmd struct{}

func (c *pageCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, postCall[httpapi.SignIn]("sign-in", nil), func(in httpapi.SignIn) {
		a.Print("%s", in.Link())
		if terminal.IsTerminal(a.Out) {
			terminal.OpenBrowser(in.URL)
		}
		a.Note("open the address in a browser on this machine and sign in")
		a.Note("or open %s and type the code %s, which is valid once, until %s", in.URL, in.Code, in.Expires.Local().Format("15:04:05"))
	})
}
