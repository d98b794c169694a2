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

// People read the newest items. Programs read all items from the oldest on, with --json and --after. The owner API
// lists items in the order of arrival. To find the newest items, newest reads all items since a recent moment, and if
// these are too few, all items since an earlier moment.

// show prints the newest items for a person, or those after --after, and explains how to see more.
func (c *inboxListCmd) show(ctx context.Context, a *app) error {
	o, err := a.connect(ctx)
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

// page reads the items after an id, oldest first, and reports whether more follow.
func (c *inboxListCmd) page(ctx context.Context, o *daemon.Client, after string) (list []owner.Item, more bool, err error) {
	page, err := daemon.Fetch(ctx, o, owner.ListInbox.Call().WithQuery(c.query(after)))
	return page.Items, page.Next != "", err
}

// maxWindow bounds the search for the newest items: newest stops after the first window that is longer than this.
const maxWindow = 10 * 365 * 24 * time.Hour

// newest returns the newest items, up to the limit, oldest first.
func (c *inboxListCmd) newest(ctx context.Context, o *daemon.Client, now time.Time) ([]owner.Item, error) {
	for window := time.Minute; ; window *= 4 {
		var found []owner.Item
		after, more := fmt.Sprintf("in_%012x", now.Add(-window).UnixMilli()), true // the id of an item begins with its time of arrival
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
		if len(found) == c.Limit || window > maxWindow {
			return found, nil
		}
	}
}
