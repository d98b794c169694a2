package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/cached"
	"github.com/agentmesh/agentmesh/directory/cursor"
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

// changesAfter returns a [wire.ChangePage] in JSON: at most limit changes of cards after the position in since, or from
// the beginning if since is "". If nothing has changed yet, it waits for a change, but not longer than wait or 30 seconds.
func (r *Registry) changesAfter(ctx context.Context, since string, limit int, wait time.Duration) ([]byte, error) {
	var after uint64
	if since != "" {
		pos, err := r.cursors.Open(ctx, since, feedFilters)
		if err != nil {
			return nil, err
		}
		after = pos.Seq
	}
	lines, err := r.awaitChanges(ctx, after, limit, min(wait, maxWait))
	if err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	now, last, next, more := wire.Now(), "", since, false
	page := append(make([]byte, 0, 64+1024*len(lines)), `{"changes":[`...)
	i := 0
	for c, err := range describeChanges(ctx, r, lines, now) {
		if err != nil {
			return nil, err
		}
		if more = i == limit || len(page) > maxPageBytes; more {
			break
		}
		if i > 0 {
			page = append(page, ',')
		}
		page = c.append(page)
		after, last = lines[i].Change, lines[i].ID
		i++
	}
	if last != "" || since == "" {
		if next, err = r.cursors.Seal(ctx, last, store.Position{Seq: after}, feedFilters); err != nil {
			return nil, err
		}
	}
	page = wire.AppendString(append(page, `],"next":`...), next)
	return append(strconv.AppendBool(append(page, `,"more":`...), more), '}'), nil
}

// listedChange is a change with the card, if it is listed. Its Record is nil.
type listedChange struct {
	wire.Change
	body []byte    // of the card
	view *cardView // nil: the change is a tombstone
}

// append appends the JSON of the change.
func (c listedChange) append(out []byte) []byte {
	out = wire.AppendString(append(out, `{"change":`...), c.Change.Change)
	out = wire.AppendString(append(out, `,"agent_id":`...), string(c.AgentID))
	if c.view != nil {
		out = append(append(append(out, `,"record":{"card":`...), c.body...), c.view.record...)
	}
	if c.Reason != "" {
		out = wire.AppendString(append(out, `,"reason":`...), c.Reason)
	}
	return append(wire.AppendString(append(out, `,"at":`...), wire.FormatTime(c.At)), '}')
}

// awaitChanges returns the changes after a position: one more than limit if there are more. Without changes, it waits
// for at most wait. If the feed has not reached the position, as after a restore from a backup, it returns
// [wire.ErrCursor]: a reader that waited for this position would miss the changes before it.
func (r *Registry) awaitChanges(ctx context.Context, after uint64, limit int, wait time.Duration) ([]store.CardChange, error) {
	wake := r.changed.Wait() // before the feed is read, so that no change is missed
	leave, ok := r.waiters.Enter("")
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
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		select {
		case <-limited.Done():
			return nil, nil // also if the server stops, or the client left
		case <-time.After(feedPoll):
		case <-wake:
			wake = nil // this channel stays closed; from now on only the times wake us
		}
		if lines, err = r.cards.Changes(ctx, after, limit+1); err != nil || len(lines) > 0 {
			return lines, err
		}
	}
}

// describeChanges yields what rows of the store's feed mean now. An error ends the iteration.
func describeChanges(ctx context.Context, r *Registry, lines []store.CardChange, now time.Time) iter.Seq2[listedChange, error] {
	return func(yield func(listedChange, error) bool) {
		for batch := range slices.Chunk(lines, 16) { // cards may be large
			ids := make([]string, len(batch))
			for i, line := range batch {
				ids[i] = line.ID
			}
			gen := r.views.generation()
			cards, err := r.cards.HeldAll(ctx, ids, now) // not cached bodies: a reader that got an older card would never learn of this change
			for i, line := range batch {
				var c listedChange
				if err == nil {
					c, err = r.describeChange(ctx, line, cards[i], gen, now)
				}
				if !yield(c, err) || err != nil {
					return
				}
			}
		}
	}
}

// describeChange returns what a row of the store's feed means now. card is the card of the row if it is held, and gen is
// the generation before it was read.
func (r *Registry) describeChange(ctx context.Context, line store.CardChange, card store.Card, gen uint64, now time.Time) (c listedChange, err error) {
	c.AgentID, c.At = wire.AgentID(line.ID), line.At
	if card.ID == "" || !card.Live(now) {
		if card.ID != "" && !card.Withdrawn && !line.Withdrawn {
			c.At = card.Expires
		}
		c.Change, err = r.describeTombstone(ctx, c.Change, line.Withdrawn || card.Withdrawn, now)
		return c, err
	}
	v, err := r.view(card, gen, now)
	if err != nil {
		return c, err
	}
	c.view, c.body = v, card.Body
	// The row has no kind, so the times of the card tell what happened last. A probe without an answer is not an event.
	if c.At = v.written; v.alive.After(c.At) {
		c.At = v.alive
	}
	switch at := c.At; {
	case v.registered.Equal(at):
		c.Change.Change = wire.ChangeRegistered
	case v.keySince.Equal(at):
		c.Change.Change = wire.ChangeKey
	case v.written.Equal(at):
		c.Change.Change = wire.ChangeRenewed
	default:
		c.Change.Change = wire.ChangeVerified
	}
	return c, nil
}

// describeTombstone completes the change of a card that is no longer listed. It becomes "removed", with the operator's
// reason, if the operator removed the card.
func (r *Registry) describeTombstone(ctx context.Context, c wire.Change, withdrawn bool, now time.Time) (wire.Change, error) {
	c.Change = wire.ChangeExpired
	if withdrawn {
		c.Change = wire.ChangeWithdrawn
	}
	removal, err := moderation.LastRemoval(ctx, r.recs, c.AgentID, now)
	if removal.At.Equal(c.At) { // otherwise the card was registered again after the removal
		c.Change, c.Reason = wire.ChangeRemoved, removal.Reason
	}
	return c, err
}

func (r *Registry) getChanges(c echo.Context) error {
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
	data, err := r.changesAfter(c.Request().Context(), params.Get("since"), limit, time.Duration(wait)*time.Second)
	if err != nil {
		return err
	}
	return cached.Tagged(data, "").Respond(c, "no-store") // a cache would delay the next changes
}
