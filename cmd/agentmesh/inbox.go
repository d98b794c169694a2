package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

type inboxCmd struct {
	List inboxListCmd `cmd:"" default:"withargs" help:"List incoming messages, or follow them."`
	Wait inboxWaitCmd `cmd:"" help:"Wait for the oldest new item and print it as JSON. The same item is printed until it is answered or acknowledged."`
	Show inboxShowCmd `cmd:"" help:"Show an item."`
	Ack  inboxAckCmd  `cmd:"" help:"Mark an item as read."`

	Retry inboxRetryCmd `cmd:"" help:"Run the hook of a waiting or failed item again at once."`
}

type inboxListCmd struct {
	State  string `placeholder:"STATE" help:"List only items in this state: new, read, running, waiting, answered, held, rejected, withdrawn, expired, failed or interrupted; or guard: what the guard stopped."`
	After  string `placeholder:"ID" help:"List only items that came after this one."`
	Limit  int    `default:"50" help:"Maximum number of items: the newest ones or, with --after or --json, the oldest ones. To get more, pass next from the JSON output as --after."`
	Follow bool   `help:"Keep printing new items until interrupted. With --json, one line each."`
}

func (c *inboxListCmd) Run(ctx context.Context, a *app) error {
	switch {
	case c.Follow && c.State == string(owner.Guarded):
		return exit.Fail(exit.Usage, errors.New("--follow needs a state that an item enters"))
	case c.Follow:
		return c.follow(ctx, a)
	}
	if !a.globals.JSON {
		return c.show(ctx, a)
	}
	return callAndShow(ctx, a, owner.ListInbox.Call().WithQuery(c.query(c.After)), nil)
}

func (c *inboxListCmd) query(after string) url.Values {
	return owner.Params("state", c.State, "after", after, "limit", fmt.Sprint(c.Limit))
}

// show prints the newest items for a person, or those after --after, and explains how to see more. Programs read all
// items from the oldest on, with --json and --after.
func (c *inboxListCmd) show(ctx context.Context, a *app) (err error) {
	var list []owner.Item
	var more bool
	err = a.withClient(ctx, func(o *daemon.Client) error {
		query := c.query(c.After)
		if c.After == "" {
			query.Set("newest", "true")
		}
		page, err := daemon.Fetch(ctx, o, owner.ListInbox.Call().WithQuery(query))
		if list, more = page.Items, page.Next != ""; c.After == "" {
			slices.Reverse(list)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, i := range list {
		a.showLine(i)
	}
	switch {
	case more && c.After != "" && len(list) > 0:
		a.Note("there are newer items: list them with --after %s", terminal.Clean(list[len(list)-1].ID))
	case more && c.State == "":
		a.Note("there are older items: list more with --limit, or only new ones with --state new")
	case more:
		a.Note("there are older items: list more with --limit")
	case len(list) > 0:
	case c.State != "" || c.After != "":
		a.Note("no items match")
	default:
		a.Note("the inbox is empty")
		a.Hint("agentmesh inbox --follow waits for messages; agentmesh approvals lists what waits for you")
	}
	return nil
}

// pollSeconds is how long one long poll waits.
const pollSeconds = 50

// follow prints items as they arrive until the user stops it. With --state, it prints an item when the item enters that
// state. An older item may then come after newer ones, for example a held item that the owner approves later.
func (c *inboxListCmd) follow(ctx context.Context, a *app) error {
	return a.withClient(ctx, func(o *daemon.Client) error {
		if err := requireServe(o, "only agentmesh serve receives messages"); err != nil {
			return err
		}
		f := follower{c: c, a: a, o: o, seen: make(map[string]bool)}
		err := f.run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
}

// follower prints each item once, as long as it remembers the id.
type follower struct {
	c    *inboxListCmd
	a    *app
	o    *daemon.Client
	seen map[string]bool
}

const maxSeen = 100_000 // a follower that remembers this many ids forgets all of them

func (f *follower) run(ctx context.Context) error {
	for ev, err := range owner.ReadEvents(ctx, f.o, string(owner.TopicInbox)) {
		switch {
		case err != nil:
			return err
		case ev.Topic == "", ev.Topic == owner.TopicReset:
			err = f.list(ctx)
		case f.c.State == "" || f.c.State == ev.State:
			err = f.fetch(ctx, ev.ID, ev.State)
		}
		if err != nil {
			return err
		}
	}
	return exit.Fail(exit.Unavailable, errors.New("the running agentmesh ended the stream"))
}

// list prints the items in the inbox that were not printed before.
func (f *follower) list(ctx context.Context) error {
	for after := f.c.After; ; {
		page, err := daemon.Fetch(ctx, f.o, getCall[owner.List[json.RawMessage]]("inbox", f.c.query(after)))
		if err != nil {
			return err
		}
		for _, raw := range page.Items {
			if err := f.show(raw); err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// fetch shows the item with this id, which now has this state. Without --state, it skips items up to --after, except
// for one that becomes new, for example because the owner released it.
func (f *follower) fetch(ctx context.Context, id, state string) error {
	if f.seen[id] || f.c.State == "" && id <= f.c.After && state != string(owner.ItemNew) {
		return nil
	}
	raw, err := daemon.Raw(ctx, f.o, owner.ShowItem.Call(id))
	if exit.Code(err) == exit.No { // deleted meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	return f.show(raw)
}

// show prints an item, unless it was printed before or has another state than the user asked for.
func (f *follower) show(raw json.RawMessage) error {
	i, err := daemon.Decode[owner.Item](raw)
	if err != nil || f.seen[f.keyOf(i)] || f.c.State != "" && string(i.State) != f.c.State {
		return err
	}
	if len(f.seen) >= maxSeen {
		clear(f.seen)
	}
	f.seen[f.keyOf(i)] = true
	if f.a.globals.JSON {
		f.a.Print("%s", terminal.EscapeUnsafe(raw))
	} else {
		f.a.showLine(i)
	}
	return f.a.WriteError()
}

// keyOf returns the key of an item in seen. A held item is shown again when it is released.
func (f *follower) keyOf(i owner.Item) string {
	if i.State == owner.ItemHeld {
		return i.ID + " held"
	}
	return i.ID
}

// inboxWaitCmd is for agents: wait, work, reply or ack, and wait again. If the agent dies in between, no item is lost,
// because an item stays new until a reply or an ack.
type inboxWaitCmd struct {
	Timeout time.Duration `default:"50s" help:"How long to wait; 0 waits forever. After the timeout, the exit code is 75."`
}

func (c *inboxWaitCmd) Run(ctx context.Context, a *app) error {
	for end := time.Now().Add(c.Timeout); ctx.Err() == nil; {
		wait := pollSeconds * time.Second
		if c.Timeout > 0 {
			wait = max(0, min(wait, time.Until(end)))
		}
		item, err := nextItem(ctx, a, wait)
		switch {
		case err != nil:
			return err
		case item != nil:
			return a.JSON(item)
		case c.Timeout > 0 && !time.Now().Before(end):
			return exit.FailSilently(exit.TryAgain)
		}
	}
	return exit.FailSilently(exit.TryAgain)
}

// nextItem returns the oldest new item, or nil if no item came before the timeout. If serve is not running, it looks
// only once, closes the database so that serve can start, and then waits no longer than pollInterval.
func nextItem(ctx context.Context, a *app, timeout time.Duration) (json.RawMessage, error) {
	o, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	query := owner.Params("state", "new", "limit", "1")
	if o.Local == nil {
		query.Set("wait", fmt.Sprint(wire.CeilSeconds(timeout)))
	}
	page, err := daemon.Fetch(ctx, o, getCall[owner.List[json.RawMessage]]("inbox", query))
	if err := errors.Join(err, o.Close()); err != nil {
		return nil, err
	}
	if len(page.Items) > 0 {
		return page.Items[0], nil
	}
	if o.Local != nil {
		waiting.Pause(ctx, min(timeout, pollInterval))
	}
	return nil, nil
}

func (a *app) showLine(i owner.Item) {
	a.Print("%s %s %-11s %s %s %s", terminal.Clean(i.ID), terminal.FormatTime(i.At), i.State, terminal.Clean(i.Shown().String()), terminal.Clean(cmp.Or(string(i.Conversation), i.About)), terminal.Truncate(owner.Say(i.Payload, false).Sentence(i.Intent), 300))
}

type itemArg struct {
	ID string `arg:"" help:"Id of the item."`
}

type inboxShowCmd struct{ itemArg }

func (c *inboxShowCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, owner.ShowItem.Call(c.ID), a.showItem)
}

func (a *app) showItem(i owner.Item) {
	rows := [][]string{{"id", i.ID}, {"state", string(i.State)}, {"from", i.Shown().String()}, {"peer", string(i.Peer)}}
	if i.About != "" { // a task: the bridge that made it has already decided about the sender
		rows = append(rows, []string{"about", i.About})
	} else {
		rows = append(rows, []string{"trust", cmp.Or(i.Trust, "unknown")}, []string{"conversation", string(i.Conversation)})
	}
	rows = append(rows, []string{"intent", string(i.Intent)}, []string{"at", terminal.FormatTime(i.At)})
	if i.Sealed {
		rows = append(rows, []string{"sealed", "only you and the sender can read it"})
	}
	if judgment := i.Judgment(); judgment != "" {
		rows = append(rows, []string{"guard", judgment})
	}
	if i.Note != "" {
		rows = append(rows, []string{"note", i.Note})
	}
	rows = append(rows, failureRows(i)...)
	a.Table(rows)
	a.showSaid(i.Payload)
	switch isOpen := i.State == owner.ItemNew || i.State == owner.ItemRead; {
	case i.About == "" || !isOpen: // not a task that waits for an answer
	case strings.HasPrefix(i.Turn, thread.TurnSuggestion+"/"): // the executor suggests something else
		a.Hint("agentmesh reply %s --action accept follows the suggestion, --action decline rejects it", terminal.Clean(i.ID))
	default:
		a.Hint("agentmesh reply %s 'a text' answers the task; --action accept accepts it, --action decline declines it", terminal.Clean(i.ID))
	}
}

// showSaid prints what a peer wrote, marked as untrusted.
func (a *app) showSaid(payload json.RawMessage) {
	a.Print("untrusted text from the other side (--json shows exactly what was sent):")
	said := owner.Say(payload, false)
	for line := range strings.Lines(strings.Join(said.Lines(), "\n")) {
		a.Print("  %s", terminal.Clean(strings.TrimRight(line, "\n")))
	}
}

// failureRows returns rows that describe how the hook of an item failed, or nil if it did not fail.
func failureRows(i owner.Item) (rows [][]string) {
	f := i.Failure
	if f == nil {
		return nil
	}
	text := fmt.Sprintf("%s, %s", f.Reason, terminal.FormatTime(f.At))
	if f.Exit != 0 {
		text += fmt.Sprintf(", exit status %d", f.Exit)
	}
	if f.Times > 1 {
		text += fmt.Sprintf(", %d times since %s", f.Times, terminal.FormatTime(f.Since))
	}
	rows = append(rows, []string{"hook", i.Route}, []string{"failure", text})
	if f.Stderr != "" {
		rows = append(rows, []string{"stderr", f.Stderr})
	}
	if i.State == owner.ItemWaiting {
		rows = append(rows, []string{"next attempt", terminal.FormatTime(i.RetryAt)})
	}
	return rows
}

func (a *app) showState(i owner.Item) { a.Print("%s: %s", i.State, terminal.Clean(i.ID)) }

type inboxRetryCmd struct{ itemArg }

func (c *inboxRetryCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, owner.RetryItem.Call(c.ID), a.showState)
}

type inboxAckCmd struct{ itemArg }

func (c *inboxAckCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, owner.Acknowledge.Call(c.ID), a.showState)
}
