package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/directory"
)

// tokenCmd issues the codes that a directory in mode invite asks for (AM-56).
type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a code with which one card can be registered. It is shown once."`
	List   tokenListCmd   `cmd:"" help:"List the codes that were made."`
	Revoke tokenRevokeCmd `cmd:"" help:"Make a code useless."`
}

// inviteCode is what the commands show of a code.
type inviteCode struct {
	ID      string    `json:"id"`
	Code    string    `json:"code"`
	Label   string    `json:"label"`
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at"`
	Used    time.Time `json:"used_at"`
	UsedBy  string    `json:"used_by"`
}

type tokenCreateCmd struct {
	Label string `placeholder:"TEXT" help:"What it is for."`
	Days  int    `default:"7" help:"How many days it is good."`
	JSON  bool   `help:"Print the result as JSON."`
}

func (c *tokenCreateCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, post("tokens", directory.NewToken{Label: c.Label, Days: c.Days}), func(t inviteCode) {
		a.print("%s", clean(t.Code))
		a.note("id %s, good once until %s", clean(t.ID), when(t.Expires))
	})
}

type tokenListCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *tokenListCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, get("tokens", nil), func(page struct {
		Tokens []inviteCode `json:"tokens"`
	}) {
		rows := [][]string{{"ID", "EXPIRES", "USED", "BY", "LABEL"}}
		for _, t := range page.Tokens {
			rows = append(rows, []string{t.ID, when(t.Expires), when(t.Used), orDash(t.UsedBy), short(t.Label, 60)})
		}
		a.table(rows)
	})
}

type tokenRevokeCmd struct {
	ID string `arg:"" help:"Id of the code."`
}

func (c *tokenRevokeCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	_, err = o.call(ctx, http.MethodDelete, "tokens/"+url.PathEscape(c.ID), nil, nil)
	if err := errors.Join(err, o.close()); err != nil {
		return err
	}
	a.note("revoked")
	return nil
}
