package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/cached"
	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	maxWait    = 30 * time.Second // the longest wait of one request for changes
	feedPoll   = 5 * time.Second  // between two reads of the store by a waiting reader, because nothing wakes readers when a card expires
	maxWaiting = 512              // readers that wait at once; others get their response without a wait
)

// feedFilters ties the cursors to the feed: no other list accepts them.
var feedFilters = cursor.HashFilters([]string{"changes"}, nil, nil, "")

// Changes returns at most limit changes of cards (1 to 100) after the position in since, or from the beginning if since
// is "". If nothing has changed yet, it waits for a change, but not longer than wait or 30 seconds.
func (r *Registry) Changes(ctx context.Context, since string, limit int, wait time.Duration) (wire.ChangePage, error) {
	if limit < 1 || limit > maxLimit {
		return wire.ChangePage{}, wire.ErrQuery.At("limit must be 1 to 100")
	}
	var after uint64
	if since != "" {
		pos, err := r.cursors.Open(ctx, since, feedFilters)
		if err != nil {
			return wire.ChangePage{}, err
		}
		after = pos.Seq
	}
	lines, err := r.awaitChanges(ctx, after, limit, min(wait, maxWait))
	if err != nil {
		return wire.ChangePage{}, fmt.Errorf("read changes: %w", err)
	}
	page := wire.ChangePage{Changes: make([]wire.Change, 0, len(lines))}
	now, last, size := wire.Now(), "", 0
	for i, line := range lines {
		if page.More = i == limit || size > maxPageBytes; page.More {
			break
		}
		c, bodySize, err := r.describeChange(ctx, line, now)
		if err != nil {
			return wire.ChangePage{}, err
		}
		page.Changes = append(page.Changes, c)
		after, last, size = line.Change, line.ID, size+bodySize
	}
	if last == "" && since != "" {
		page.Next = since
		return page, nil
	}
	page.Next, err = r.cursors.Seal(ctx, last, store.Position{Seq: after}, feedFilters)
	return page, err
}

// awaitChanges returns the changes after a position: one more than limit if there are more. Without changes, it waits
// for at most wait. If the feed has not reached the position, as after a restore from a backup, it returns
// [wire.ErrCursor]: a reader that waited for this position would miss the changes before it.
func (r *Registry) awaitChanges(ctx context.Context, after uint64, limit int, wait time.Duration) ([]store.CardChange, error) {
	wake, leave, ok := r.changes.Listen()
	if !ok {
		wait = 0
	} else {
		defer leave()
	}
	lines, err := r.cards.Changes(ctx, after, limit+1)
	if err == nil && len(lines) == 0 && after > 0 {
		var last []store.CardChange
		if last, err = r.cards.Changes(ctx, after-1, 1); err == nil && len(last) == 0 {
			err = wire.ErrCursor.Because(errors.New("the feed ends before this position"))
		}
	}
	if err != nil || len(lines) > 0 || wait <= 0 {
		return lines, err
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	poll := time.NewTicker(feedPoll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil // the server stops, or the client left
		case <-end.C:
			return nil, nil
		case <-poll.C:
		case <-wake:
			wake = nil // this channel stays closed; from now on only the ticker and the timer wake us
		}
		if lines, err = r.cards.Changes(ctx, after, limit+1); err != nil || len(lines) > 0 {
			return lines, err
		}
	}
}

// describeChange returns what a row of the store's feed means now, and the size of its card.
func (r *Registry) describeChange(ctx context.Context, line store.CardChange, now time.Time) (c wire.Change, size int, err error) {
	c = wire.Change{AgentID: wire.AgentID(line.ID), At: line.At}
	card, err := r.cards.Held(ctx, line.ID, now)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return wire.Change{}, 0, err
	case err == nil && card.Live(now): // handled below
	case line.Withdrawn || card.Withdrawn:
		c, err = r.completeTombstone(ctx, c, wire.ChangeWithdrawn, now)
		return c, 0, err
	default:
		if err == nil {
			c.At = card.Expires
		}
		c, err = r.completeTombstone(ctx, c, wire.ChangeExpired, now)
		return c, 0, err
	}
	rec, m, err := listing.NewRecord(card, now)
	if err != nil {
		return wire.Change{}, 0, err
	}
	c.Record = &rec
	// The row has no kind, so the times of the card tell what happened last. A probe without an answer is not an event.
	if c.At = card.Updated; m.Alive.After(c.At) {
		c.At = m.Alive
	}
	switch at := c.At; {
	case card.Registered.Equal(at):
		c.Change = wire.ChangeRegistered
	case m.Current.Since.Equal(at):
		c.Change = wire.ChangeKey
	case card.Updated.Equal(at):
		c.Change = wire.ChangeRenewed
	default:
		c.Change = wire.ChangeVerified
	}
	return c, len(card.Body), nil
}

// completeTombstone completes the change of a card that is no longer listed. It becomes "removed", with the operator's
// reason, if the operator removed the card; otherwise it becomes kind.
func (r *Registry) completeTombstone(ctx context.Context, c wire.Change, kind string, now time.Time) (wire.Change, error) {
	c.Change = kind
	removal, err := moderation.LastRemoval(ctx, r.recs, c.AgentID, now)
	if removal.At.Equal(c.At) { // otherwise the card was registered again after the removal
		c.Change, c.Reason = wire.ChangeRemoved, removal.Reason
	}
	return c, err
}

func (r *Registry) getChanges(c echo.Context) error {
	if r.cfg.CountReader != nil {
		r.cfg.CountReader(httpapi.ClientAddr(c), c.Request().UserAgent())
	}
	params, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return wire.ErrQuery.Because(err)
	}
	limit, wait := maxLimit, 0
	if err := cmp.Or(readNumber(params, "limit", 1, maxLimit, &limit), readNumber(params, "wait", 0, int(maxWait/time.Second), &wait)); err != nil {
		return err
	}
	if wait > 0 {
		if err := httpapi.KeepOpen(c, maxWait+10*time.Second); err != nil {
			return err
		}
	}
	page, err := r.Changes(c.Request().Context(), params.Get("since"), limit, time.Duration(wait)*time.Second)
	if err != nil {
		return err
	}
	data, err := httpapi.Encode(page)
	if err != nil {
		return err
	}
	return cached.New(data).Respond(c, "no-store") // a cache would delay the next changes
}
