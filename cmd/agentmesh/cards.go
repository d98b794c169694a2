package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/operator"
	"github.com/agentmesh/agentmesh/node/owner"
)

// cardsCmd has the commands for the operator of the directory that this process hosts. A change of cards or bans needs
// a reason, which the audit log records. The public change feed also shows the reasons of removals.
type cardsCmd struct {
	List     cardsListCmd     `cmd:"" default:"withargs" help:"List cards as the operator sees them."`
	Remove   cardsRemoveCmd   `cmd:"" help:"Remove a card. Its owner may register it again unless banned."`
	Handover cardsHandoverCmd `cmd:"" help:"Give a card back to an owner who lost the credential: the next registration that proves the card's key gets it."`
	Ban      cardsBanCmd      `cmd:"" help:"Ban an id, a key, a host or an address range. A ban of an id, a key or a host also removes its cards."`
	Unban    cardsUnbanCmd    `cmd:"" help:"Lift a ban."`
	Bans     cardsBansCmd     `cmd:"" help:"List the bans."`
	Reports  cardsReportsCmd  `cmd:"" help:"List the reports about cards."`
	Dismiss  cardsDismissCmd  `cmd:"" help:"Delete a report."`
	Export   cardsExportCmd   `cmd:"" help:"Write all cards with their owners and proofs, one JSON object per line."`
	Import   cardsImportCmd   `cmd:"" help:"Add the cards of an export. Existing cards stay unchanged."`
}

type cardsListCmd struct {
	Query      string   `arg:"" optional:"" help:"Words in name or description."`
	Capability []string `placeholder:"TAG" sep:"none" help:"List only cards with this capability. Repeat for more."`
	Owner      string   `placeholder:"TEXT" help:"List only cards whose owner's name contains these words."`
	Verified   []string `placeholder:"CHECK" sep:"none" enum:"key,endpoint,alive" help:"List only cards that passed this check: key, endpoint or alive. Repeat for more."`
	Limit      int      `default:"100" help:"Maximum number of cards."`
}

func (c *cardsListCmd) Run(ctx context.Context, a *app) error {
	if c.Limit < 1 {
		return exit.Fail(exit.Usage, errors.New("--limit must be 1 or more"))
	}
	query := owner.Params("q", c.Query, "owner", c.Owner)
	for _, v := range c.Capability {
		query.Add("capability", v)
	}
	for _, v := range c.Verified {
		query.Add("verified", v)
	}
	heads := []string{"AGENT", "NAME", "HOST", "OWNER", "EXPIRES", "PROVEN"}
	return showPages(ctx, a, operator.ListCards.Call().WithQuery(query), c.Limit, "no cards", heads, func(l directory.OperatorCard) []string {
		return []string{string(l.AgentID), terminal.Truncate(l.Name, 40), terminal.Truncate(l.Host, 40), l.Owner, terminal.FormatTime(l.Expires), orDash(joinProofs(l))}
	})
}

func joinProofs(l directory.OperatorCard) string {
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

// showPages shows what [fetchPages] returns: as JSON with --json, or else like [showList].
func showPages[T any](ctx context.Context, a *app, c owner.Call[owner.List[T]], limit int, emptyText string, heads []string, row func(T) []string) error {
	page, err := withResult(ctx, a, func(o *daemon.Client) (owner.List[T], error) { return fetchPages(ctx, o, c, limit) })
	if err != nil {
		return err
	}
	return a.report(owner.Page(page.Items, ""), func() { showList(a, page, emptyText, heads, row) })
}

// fetchPages reads up to limit items of a list, page by page. If Next is empty, the list is complete.
func fetchPages[T any](ctx context.Context, o *daemon.Client, c owner.Call[owner.List[T]], limit int) (all owner.List[T], err error) {
	query := maps.Clone(c.Query)
	for {
		page, err := daemon.Fetch(ctx, o, c.WithQuery(query))
		if err != nil {
			return all, err
		}
		all.Items, all.Next = append(all.Items, page.Items...), page.Next
		if n := len(all.Items); n > limit {
			all.Items, all.Next = all.Items[:limit], "cut"
		}
		if all.Next == "" || len(all.Items) == limit {
			return all, nil
		}
		if query == nil {
			query = url.Values{}
		}
		query.Set("after", all.Next)
	}
}

type cardsRemoveCmd struct {
	ID     string `arg:"" help:"Id of the agent."`
	Reason string `required:"" placeholder:"TEXT" help:"Reason, which everybody can read in the change feed."`
}

func (c *cardsRemoveCmd) Run(ctx context.Context, a *app) error {
	order := operator.RemoveCard.With(operator.Order{Reason: c.Reason}, c.ID)
	return callAndShow(ctx, a, order, func(operator.OrderResult) { a.Note("removed") })
}

type cardsHandoverCmd struct {
	ID     string `arg:"" help:"Id of the agent."`
	Reason string `required:"" placeholder:"TEXT" help:"Reason, for the audit log."`
}

func (c *cardsHandoverCmd) Run(ctx context.Context, a *app) error {
	order := operator.HandOverCard.With(operator.Order{Reason: c.Reason}, c.ID)
	return callAndShow(ctx, a, order, func(operator.OrderResult) {
		a.Note("the next registration that proves the key of the card gets the card")
	})
}

type cardsBanCmd struct {
	What   string `arg:"" help:"An agent id, a key or its fingerprint, a host (with its subdomains), an address, or a range such as 203.0.113.0/24."`
	Reason string `required:"" placeholder:"TEXT" help:"Reason, which the change feed shows with the removed cards."`
}

func (c *cardsBanCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, operator.Ban.With(operator.Order{What: c.What, Reason: c.Reason}), func(result operator.OrderResult) {
		a.Note("banned %s %s; %s removed", result.Ban.Kind, terminal.Clean(result.Ban.Value), countText(result.Removed, "card"))
	})
}

type cardsUnbanCmd struct {
	What   string `arg:"" help:"The banned id, key, host, address or range, as given to ban."`
	Reason string `required:"" placeholder:"TEXT" help:"Reason, for the audit log."`
}

func (c *cardsUnbanCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, operator.LiftBan.With(operator.Order{What: c.What, Reason: c.Reason}), func(result operator.OrderResult) {
		a.Note("%s %s may register again", result.Ban.Kind, terminal.Clean(result.Ban.Value))
	})
}

// noLimit is a limit that no list of the operator reaches.
const noLimit = 100_000

type cardsBansCmd struct{}

func (c *cardsBansCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"KIND", "VALUE", "SINCE", "REASON"}
	return showPages(ctx, a, operator.ListBans.Call(), noLimit, "nobody is banned", heads, func(b moderation.Ban) []string {
		return []string{string(b.Kind), b.Value, terminal.FormatTime(b.At), terminal.Truncate(b.Reason, 80)}
	})
}

type cardsReportsCmd struct {
	ID string `arg:"" optional:"" help:"List only reports about this agent."`
}

func (c *cardsReportsCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"REPORT", "AGENT", "KIND", "FROM", "AT", "TEXT"}
	return showPages(ctx, a, operator.ListReports.Call().WithQuery(owner.Params("agent_id", c.ID)), noLimit, "no reports", heads, func(r directory.Report) []string {
		return []string{r.ID, string(r.AgentID), r.Kind, r.From, terminal.FormatTime(r.At), terminal.Truncate(r.Text, 80)}
	})
}

type cardsDismissCmd struct {
	Report string `arg:"" help:"Id of the report."`
}

func (c *cardsDismissCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, operator.DismissReport.Call(c.Report), func(owner.None) { a.Note("dismissed") })
}

type cardsExportCmd struct{}

func (c *cardsExportCmd) Run(ctx context.Context, a *app) error {
	type exportPage struct {
		Cards []json.RawMessage `json:"cards"`
		After uint64            `json:"after"`
	}
	n := 0
	err := a.withClient(ctx, func(o *daemon.Client) error {
		for after := uint64(0); ; {
			page, err := daemon.Fetch(ctx, o, getCall[exportPage]("directory/export", owner.Params("after", fmt.Sprint(after))))
			if err != nil {
				return err
			}
			for _, line := range page.Cards {
				a.Print("%s", terminal.EscapeUnsafe(line))
			}
			n += len(page.Cards)
			if after = page.After; after == 0 || a.WriteError() != nil {
				return a.WriteError()
			}
		}
	})
	if err == nil {
		a.Note("%s", countText(n, "card"))
	}
	return err
}

type cardsImportCmd struct {
	File   string `arg:"" help:"File that cards export wrote, or - for standard input."`
	Reason string `required:"" placeholder:"TEXT" help:"Reason, for the audit log."`
}

// Bounds of an import, which sends the lines of its file in batches.
const (
	maxBatchLines = 100
	maxBatchBytes = 8 << 20
	maxLineBytes  = 1 << 20 // a card with all its retired keys
)

func (c *cardsImportCmd) Run(ctx context.Context, a *app) error {
	in, err := a.OpenInput(c.File)
	if err != nil {
		return exit.FailHint(exit.Input, err, "name a file that agentmesh cards export wrote")
	}
	defer in.Close()
	result, err := withResult(ctx, a, func(o *daemon.Client) (directory.ImportResult, error) { return c.sendBatches(ctx, o, in) })
	if err != nil {
		return err
	}
	err = a.report(result, func() {
		a.Note("%s added, %d skipped, %d refused", countText(result.Added, "card"), result.Skipped, result.Refused)
		for _, why := range slices.Sorted(maps.Keys(result.Reasons)) {
			a.Note("%s: %s", countText(result.Reasons[why], "card"), terminal.Clean(why))
		}
	})
	return cmp.Or(err, exit.Unless(result.Refused == 0, exit.Input))
}

// sendBatches imports the cards of a file, one per line, and returns the sum of the results of all batches.
func (c *cardsImportCmd) sendBatches(ctx context.Context, o *daemon.Client, in io.Reader) (total directory.ImportResult, err error) {
	lines, size := []json.RawMessage(nil), 0
	flush := func() error {
		if len(lines) == 0 {
			return nil
		}
		result, err := daemon.Fetch(ctx, o, postCall[directory.ImportResult]("directory/import", struct {
			Cards  []json.RawMessage `json:"cards"`
			Reason string            `json:"reason"`
		}{lines, c.Reason}))
		total.Add(result)
		lines, size = nil, 0
		return err
	}
	scan := bufio.NewScanner(in)
	scan.Buffer(nil, maxLineBytes)
	for n := 1; scan.Scan(); n++ {
		line := bytes.TrimSpace(scan.Bytes())
		if len(line) == 0 {
			continue
		}
		if !json.Valid(line) {
			return total, exit.Fail(exit.Input, fmt.Errorf("line %d is not valid JSON", n))
		}
		lines, size = append(lines, bytes.Clone(line)), size+len(line)
		if len(lines) == maxBatchLines || size > maxBatchBytes {
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
