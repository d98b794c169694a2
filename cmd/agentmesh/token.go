package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/directory/operator"
	"github.com/agentmesh/agentmesh/directory/site"
)

// tokenCmd manages the codes that a directory in mode invite requires (AM-56).
type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a link to join the directory, with a code that registers cards. The link is shown once."`
	List   tokenListCmd   `cmd:"" default:"withargs" help:"List the codes."`
	Revoke tokenRevokeCmd `cmd:"" help:"Revoke a code."`
}

type tokenCreateCmd struct {
	Label   string    `placeholder:"TEXT" help:"Label that token list shows."`
	Days    int       `default:"7" help:"Number of days until the code expires."`
	Count   int       `default:"1" help:"Number of links to make, 1 to 1000, each with a code of its own."`
	Uses    int       `default:"1" help:"Number of cards that the code can register, 1 to 1000."`
	QR      bool      `name:"qr" help:"Print each link as a QR code, too."`
	Expires time.Time `placeholder:"TIME" help:"Expiry time, such as 2026-12-31T00:00:00Z, instead of --days."`
}

func (c *tokenCreateCmd) Run(ctx context.Context, a *app) error {
	order := operator.TokenRequest{Label: c.Label, Days: c.Days, Uses: c.Uses, Expires: c.Expires}
	if c.Count != 1 {
		return c.makeMany(ctx, a, order)
	}
	return callAndShow(ctx, a, operator.IssueToken.With(order), func(t operator.IssuedToken) {
		c.show(a, t)
		times := "once"
		if t.Uses > 1 {
			times = fmt.Sprintf("for %d cards, each with a credential of its own,", t.Uses)
		}
		a.Note("id %s, valid %s until %s", terminal.Clean(t.ID), times, terminal.FormatTime(t.Expires))
	})
}

// show prints the link of a new code.
func (c *tokenCreateCmd) show(a *app, t operator.IssuedToken) {
	a.Print("%s", terminal.Clean(t.Link))
	if code := site.NewQR(t.Link); c.QR && code != nil {
		a.Print("%s", code.Text)
	}
}

// makeMany makes c.Count codes, one after the other, and prints each as soon as it is made.
func (c *tokenCreateCmd) makeMany(ctx context.Context, a *app, order operator.TokenRequest) error {
	if c.Count < 1 || c.Count > 1000 {
		return exit.Fail(exit.Usage, errors.New("--count must be 1 to 1000"))
	}
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer o.Close()
	for i := range c.Count {
		order.Label = strings.TrimSpace(fmt.Sprintf("%s %d", c.Label, i+1))
		raw, err := daemon.Raw(ctx, o, operator.IssueToken.With(order))
		if _, err := showAnswer(a, raw, err, func(t operator.IssuedToken) { c.show(a, t) }); err != nil {
			return fmt.Errorf("code %d of %d: %w", i+1, c.Count, err)
		}
	}
	a.Note("made %d links, each for %s; agentmesh token list shows them", c.Count, countText(c.Uses, "card"))
	return nil
}

type tokenListCmd struct{}

func (c *tokenListCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"ID", "EXPIRES", "USES", "USED", "BY", "LABEL"}
	return showPages(ctx, a, operator.ListTokens.Call(), noLimit, "no codes: agentmesh token create makes one", heads, func(t operator.Token) []string {
		uses := fmt.Sprintf("%d/%d", t.Count, max(1, t.Uses))
		return []string{t.ID, terminal.FormatTime(t.Expires), uses, terminal.FormatTime(t.Used), orDash(t.UsedBy), terminal.Truncate(t.Label, 60)}
	})
}

type tokenRevokeCmd struct {
	ID string `arg:"" help:"Id of the code."`
}

func (c *tokenRevokeCmd) Run(ctx context.Context, a *app) error {
	if _, err := callRaw(ctx, a, operator.RevokeToken.Call(c.ID)); err != nil {
		return err
	}
	result := struct {
		ID      string `json:"id"`
		Revoked bool   `json:"revoked"`
	}{c.ID, true}
	return a.report(result, func() { a.Note("revoked") })
}
