package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

// A person reads the newest items; a program goes through all of them, from the oldest on, and has --json and --after for
// it. The inbox is kept in the order of arrival, so the newest are found by reading from a moment on, farther back where too
// little came in since.

// show prints what a person wants to see of the inbox, and how to see more.
func (c *inboxListCmd) show(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	list, more, err := c.page(ctx, o, c.After)
	if err == nil && more && c.After == "" {
		list, err = c.newest(ctx, o, time.Now())
	}
	if err = errors.Join(err, o.Close()); err != nil {
		return err
	}
	for _, i := range list {
		a.showLine(i)
	}
	switch {
	case more && c.After != "" && len(list) > 0:
		a.Note("there are newer items: --after %s lists them", terminal.Clean(list[len(list)-1].ID))
	case more && c.State == "":
		a.Note("there are older items: --limit says how many to list, --state new lists what waits")
	case more:
		a.Note("there are older items: --limit says how many to list")
	case len(list) > 0:
	case c.State != "" || c.After != "":
		a.Note("no item of the inbox is like that")
	default:
		a.Note("nothing came in yet")
		a.Hint("agentmesh inbox --follow waits for it; agentmesh approvals shows what waits for you")
	}
	return nil
}

// page reads items after a key, oldest first, and says whether more follow.
func (c *inboxListCmd) page(ctx context.Context, o *daemon.Client, after string) (list []owner.Item, more bool, err error) {
	page, err := daemon.Fetch(ctx, o, owner.ListInbox.Call().Ask(c.query(after)))
	return page.Items, page.Next != "", err
}

// oldestItem is how far back the inbox is read.
const oldestItem = 10 * 365 * 24 * time.Hour

// newest returns as many items as are to be listed, oldest first.
func (c *inboxListCmd) newest(ctx context.Context, o *daemon.Client, now time.Time) ([]owner.Item, error) {
	for window := time.Minute; ; window *= 4 {
		var found []owner.Item
		after, more := fmt.Sprintf("in_%012x", now.Add(-window).UnixMilli()), true // as the ids of items begin
		for more {
			list, next, err := c.page(ctx, o, after)
			if err != nil {
				return nil, err
			}
			found = append(found, list...)
			found = found[max(0, len(found)-c.Limit):]
			if more = next && len(list) > 0; more {
				after = list[len(list)-1].ID
			}
		}
		if len(found) == c.Limit || window > oldestItem {
			return found, nil
		}
	}
}
