package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/owner"
)

// cardsCmd is the operator's hand on the directory that this process hosts. Everything that changes it needs a reason,
// which stands in the audit log and, for removals, in the public feed of changes.
type cardsCmd struct {
	List     cardsListCmd     `cmd:"" help:"List cards as the operator sees them."`
	Remove   cardsRemoveCmd   `cmd:"" help:"Take a card out. Its owner may register again unless banned."`
	Handover cardsHandoverCmd `cmd:"" help:"Let an owner who lost the credential have the card back: whoever proves its key next."`
	Ban      cardsBanCmd      `cmd:"" help:"Keep out an id, a key, a host or an address range, and remove its cards."`
	Unban    cardsUnbanCmd    `cmd:"" help:"Let a banned party in again."`
	Bans     cardsBansCmd     `cmd:"" help:"List who is banned."`
	Reports  cardsReportsCmd  `cmd:"" help:"List what people reported about cards."`
	Dismiss  cardsDismissCmd  `cmd:"" help:"Drop a report that is dealt with."`
	Export   cardsExportCmd   `cmd:"" help:"Write all cards with their owners and proofs, one JSON object a line."`
	Import   cardsImportCmd   `cmd:"" help:"Take over cards that export wrote. Cards that are here already stay."`
}

type cardsListCmd struct {
	Query      string   `arg:"" optional:"" help:"Words in name or description."`
	Capability []string `placeholder:"TAG" sep:"none" help:"Only cards with this capability; may be repeated."`
	Owner      string   `placeholder:"TEXT" help:"Only cards whose owner has these words in the name."`
	Verified   []string `placeholder:"CHECK" sep:"none" enum:"key,endpoint,alive" help:"Only cards that passed a check: key, endpoint or alive; may be repeated."`
	Limit      int      `default:"100" help:"At most so many."`
	JSON       bool     `help:"Print the result as JSON."`
}

func (c *cardsListCmd) Run(ctx context.Context, a *app) error {
	query := params("q", c.Query, "owner", c.Owner)
	for _, v := range c.Capability {
		query.Add("capability", v)
	}
	for _, v := range c.Verified {
		query.Add("verified", v)
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	all, err := pages[directory.OperatorCard](ctx, o, "directory/cards", query, "cursor", c.Limit)
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	if c.JSON {
		return a.JSON(owner.Page(all, ""))
	}
	rows := [][]string{{"AGENT", "NAME", "HOST", "OWNER", "EXPIRES", "PROVEN"}}
	for _, l := range all {
		rows = append(rows, []string{string(l.AgentID), terminal.Short(l.Name, 40), terminal.Short(l.Host, 40), l.Owner, terminal.When(l.Expires), orDash(proven(l))})
	}
	a.List(rows, "no cards")
	return nil
}

func proven(l directory.OperatorCard) string {
	var list []string
	if l.Verification.Key != nil {
		list = append(list, "key")
	}
	if l.Verification.Endpoint != nil {
		list = append(list, "endpoint")
	}
	if l.Verification.Alive != nil {
		list = append(list, "alive")
	}
	return strings.Join(list, ",")
}

// pages reads the items of all pages of a list, at most limit of them. The parameter named by is where the next page
// begins: the answer's cursor or next.
func pages[T any](ctx context.Context, o *daemon.Client, path string, query url.Values, by string, limit int) ([]T, error) {
	all := []T{}
	for {
		raw, err := o.Call(ctx, http.MethodGet, path, query, nil)
		if err != nil {
			return all, err
		}
		page, err := daemon.Decode[struct {
			Items  []T    `json:"items"`
			Cursor string `json:"cursor"`
			Next   string `json:"next"`
		}](raw)
		if err != nil {
			return all, err
		}
		all = append(all, page.Items...)
		if page.Cursor+page.Next == "" || len(all) >= limit {
			return all[:min(len(all), limit)], nil
		}
		query.Set(by, page.Cursor+page.Next)
	}
}

type cardsRemoveCmd struct {
	ID     string `arg:"" help:"Id of the agent."`
	Reason string `required:"" placeholder:"TEXT" help:"Why. Everybody can read it in the feed of changes."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (c *cardsRemoveCmd) Run(ctx context.Context, a *app) error {
	order := post[directory.OrderResult]("directory/cards/"+url.PathEscape(c.ID)+"/remove", directory.Order{Reason: c.Reason})
	return ask(ctx, a, c.JSON, order, func(directory.OrderResult) { a.Note("removed") })
}

type cardsHandoverCmd struct {
	ID     string `arg:"" help:"Id of the agent."`
	Reason string `required:"" placeholder:"TEXT" help:"Why; it stands in the audit log."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (c *cardsHandoverCmd) Run(ctx context.Context, a *app) error {
	order := post[directory.OrderResult]("directory/cards/"+url.PathEscape(c.ID)+"/handover", directory.Order{Reason: c.Reason})
	return ask(ctx, a, c.JSON, order, func(directory.OrderResult) {
		a.Note("the next registration that proves the key of the card takes it over")
	})
}

type cardsBanCmd struct {
	What   string `arg:"" help:"An agent id, a key or its fingerprint, a host (and all below it), an address or a range like 203.0.113.0/24."`
	Reason string `required:"" placeholder:"TEXT" help:"Why. It stands with the removed cards in the feed of changes."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (c *cardsBanCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, post[directory.OrderResult]("directory/bans", directory.Order{What: c.What, Reason: c.Reason}), func(done directory.OrderResult) {
		a.Note("banned %s %s; %d cards removed", done.Ban.Kind, terminal.Clean(done.Ban.Value), done.Removed)
	})
}

type cardsUnbanCmd struct {
	What   string `arg:"" help:"As in ban."`
	Reason string `required:"" placeholder:"TEXT" help:"Why."`
	JSON   bool   `help:"Print the result as JSON."`
}

func (c *cardsUnbanCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, post[directory.OrderResult]("directory/bans/lift", directory.Order{What: c.What, Reason: c.Reason}), func(done directory.OrderResult) {
		a.Note("%s %s may register again", done.Ban.Kind, terminal.Clean(done.Ban.Value))
	})
}

// everything is more than any list of the operator has.
const everything = 100_000

type cardsBansCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *cardsBansCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	all, err := pages[directory.Ban](ctx, o, "directory/bans", url.Values{}, "after", everything)
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	if c.JSON {
		return a.JSON(owner.Page(all, ""))
	}
	rows := [][]string{{"KIND", "VALUE", "SINCE", "REASON"}}
	for _, b := range all {
		rows = append(rows, []string{string(b.Kind), terminal.Clean(b.Value), terminal.When(b.At), terminal.Short(b.Reason, 80)})
	}
	a.List(rows, "nobody is banned")
	return nil
}

type cardsReportsCmd struct {
	ID   string `arg:"" optional:"" help:"Only reports of this agent."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *cardsReportsCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	all, err := pages[directory.Report](ctx, o, "directory/reports", params("agent_id", c.ID), "after", everything)
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	if c.JSON {
		return a.JSON(owner.Page(all, ""))
	}
	rows := [][]string{{"REPORT", "AGENT", "KIND", "FROM", "AT", "TEXT"}}
	for _, r := range all {
		rows = append(rows, []string{r.ID, terminal.Clean(string(r.AgentID)), r.Kind, r.From, terminal.When(r.At), terminal.Short(r.Text, 80)})
	}
	a.List(rows, "no reports")
	return nil
}

type cardsDismissCmd struct {
	Report string `arg:"" help:"Id of the report."`
}

func (c *cardsDismissCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	_, err = o.Call(ctx, http.MethodDelete, "directory/reports/"+url.PathEscape(c.Report), nil, nil)
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	a.Note("dismissed")
	return nil
}

type cardsExportCmd struct{}

func (c *cardsExportCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(a.Out)
	n := 0
	for after := uint64(0); ; {
		var raw json.RawMessage
		if raw, err = o.Call(ctx, http.MethodGet, "directory/export", params("after", fmt.Sprint(after)), nil); err != nil {
			break
		}
		var page struct {
			Cards []json.RawMessage `json:"cards"`
			After uint64            `json:"after"`
		}
		if page, err = daemon.Decode[struct {
			Cards []json.RawMessage `json:"cards"`
			After uint64            `json:"after"`
		}](raw); err != nil {
			break
		}
		for _, line := range page.Cards {
			_, _ = out.Write(append(line, '\n')) // Flush tells
		}
		n += len(page.Cards)
		if after = page.After; after == 0 {
			break
		}
	}
	if err := errors.Join(err, out.Flush(), o.Close()); err != nil {
		return err
	}
	a.Note("%d cards", n)
	return nil
}

type cardsImportCmd struct {
	File   string `arg:"" help:"File that export wrote, - for standard input."`
	Reason string `required:"" placeholder:"TEXT" help:"Why; it stands in the audit log."`
	JSON   bool   `help:"Print the result as JSON."`
}

// An import travels in orders of this size.
const (
	importLines = 100
	importBytes = 8 << 20
	importLine  = 1 << 20 // a card with all its retired keys
)

func (c *cardsImportCmd) Run(ctx context.Context, a *app) error {
	in := a.In
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return exit.FailHint(exit.Input, fmt.Errorf("open %s: %w", c.File, err), "name a file that agentmesh cards export wrote")
		}
		defer file.Close()
		in = file
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	done, err := c.send(ctx, o, in)
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	if c.JSON {
		return a.JSON(done)
	}
	a.Note("%d cards added, %d skipped, %d refused", done.Added, done.Skipped, done.Refused)
	return nil
}

func (c *cardsImportCmd) send(ctx context.Context, o *daemon.Client, in io.Reader) (total directory.ImportResult, err error) {
	var lines []json.RawMessage
	size := 0
	flush := func() error {
		if len(lines) == 0 {
			return nil
		}
		raw, err := o.Call(ctx, http.MethodPost, "directory/import", nil, struct {
			Cards  []json.RawMessage `json:"cards"`
			Reason string            `json:"reason"`
		}{lines, c.Reason})
		if err != nil {
			return err
		}
		done, err := daemon.Decode[directory.ImportResult](raw)
		total.Added, total.Skipped, total.Refused = total.Added+done.Added, total.Skipped+done.Skipped, total.Refused+done.Refused
		lines, size = nil, 0
		return err
	}
	scan := bufio.NewScanner(in)
	scan.Buffer(nil, importLine)
	for n := 1; scan.Scan(); n++ {
		line := bytes.TrimSpace(scan.Bytes())
		if len(line) == 0 {
			continue
		}
		if !json.Valid(line) {
			return total, exit.Fail(exit.Input, fmt.Errorf("line %d is no JSON object", n))
		}
		lines, size = append(lines, bytes.Clone(line)), size+len(line)
		if len(lines) == importLines || size > importBytes {
			if err := flush(); err != nil {
				return total, err
			}
		}
	}
	if err := scan.Err(); err != nil {
		return total, exit.Fail(exit.Input, fmt.Errorf("read import: %w", err))
	}
	return total, flush()
}
