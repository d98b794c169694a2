package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
)

// a2aCmd manages the tokens of callers and the pinned cards of A2A agents. To write to an A2A agent, use send.
type a2aCmd struct {
	Token a2aTokenCmd `cmd:"" help:"Manage the tokens of callers."`
	Unpin a2aUnpinCmd `cmd:"" help:"Accept the next card of an A2A agent, whoever signed it. To write to an agent: agentmesh send a2a:https://HOST."`
}

type a2aTokenCmd struct {
	Add    a2aTokenAddCmd    `cmd:"" help:"Make a token for a caller. The token is shown once."`
	List   a2aTokenListCmd   `cmd:"" default:"withargs" help:"List the callers with a token."`
	Revoke a2aTokenRevokeCmd `cmd:"" help:"Revoke the token of a caller."`
}

type a2aTokenAddCmd struct {
	Name string `arg:"" help:"Name of the caller: 1 to 64 characters from a-z 0-9 -. A caller with the name of a link is the agent behind that link."`
}

func (c *a2aTokenAddCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, a2a.AddToken.Call(c.Name), func(t a2a.Token) {
		a.Print("%s", terminal.Clean(t.Token))
		a.Note("token of %s; access.mode applies to its messages", terminal.Clean(t.Address))
	})
}

type a2aTokenListCmd struct{}

func (c *a2aTokenListCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"CALLER", "ADDRESS", "SINCE"}
	return callAndShowList(ctx, a, a2a.ListTokens.Call(), "no tokens: agentmesh a2a token add NAME makes one", heads, func(t a2a.Token) []string {
		return []string{t.Name, t.Address, terminal.FormatTime(t.Created)}
	})
}

type a2aTokenRevokeCmd struct {
	Name string `arg:"" help:"Name of the caller."`
}

func (c *a2aTokenRevokeCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, a2a.RevokeToken.Call(c.Name), func(a2a.Token) { a.Note("revoked") })
}

type a2aUnpinCmd struct {
	Address string `arg:"" help:"Address of the agent: a2a:LINK/agent or a2a:https://HOST."`
}

func (c *a2aUnpinCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, a2a.UnpinPeer.Call(c.Address), func(p a2a.Pin) {
		if !p.Pinned {
			a.Note("no card of %s is pinned", terminal.Clean(p.Address))
			return
		}
		a.Note("unpinned")
	})
}
