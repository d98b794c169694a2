package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	maxWait    = 30 * time.Second // of a reader of the feed
	feedPoll   = 5 * time.Second  // how soon a change of another instance, or of Sweep, is seen
	maxWaiting = 512              // readers that wait at once; a further one is answered at once
)

// bell wakes who waits for a change.
type bell struct {
	mu      sync.Mutex
	rung    chan struct{} // closed by ring
	waiting int
}

func newBell() *bell { return &bell{rung: make(chan struct{})} }

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.rung)
	b.rung = make(chan struct{})
}

// listen returns what is closed by the next ring, and leave; ok is false where too many wait.
func (b *bell) listen() (rung <-chan struct{}, leave func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting >= maxWaiting {
		return nil, nil, false
	}
	b.waiting++
	return b.rung, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.waiting--
	}, true
}

// feedPlan is what binds a position in the feed to this directory's feed.
var feedPlan = plan{filters: filterHash([]string{"changes"}, nil, nil, "")}

// Changes returns what happened to cards after the position since ("" is the beginning), at most limit lines. Where
// nothing did, it waits for up to wait.
func (r *Registry) Changes(ctx context.Context, since string, limit int, wait time.Duration) (wire.ChangePage, error) {
	if limit == 0 {
		limit = maxLimit
	}
	if limit < 1 || limit > maxLimit {
		return wire.ChangePage{}, wire.ErrQuery.At("limit must be 1 to 100")
	}
	var after uint64
	if since != "" {
		pos, err := r.openCursor(ctx, since, feedPlan, clock())
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
	now, last, size := clock(), "", 0
	for i, line := range lines {
		if page.More = i == limit || size > maxPageBytes; page.More {
			break
		}
		c, body, err := r.change(ctx, line, now)
		if err != nil {
			return wire.ChangePage{}, err
		}
		page.Changes = append(page.Changes, c)
		after, last, size = line.Change, line.ID, size+body
	}
	if last == "" && since != "" {
		page.Next = since
		return page, nil
	}
	page.Next, err = r.cursor(ctx, last, store.Position{Seq: after}, feedPlan, now)
	return page, err
}

// awaitChanges returns at most one line more than limit.
func (r *Registry) awaitChanges(ctx context.Context, after uint64, limit int, wait time.Duration) ([]store.CardChange, error) {
	rung, leave, ok := r.bell.listen()
	if !ok {
		wait = 0
	} else {
		defer leave()
	}
	lines, err := r.cards.Changes(ctx, after, limit+1)
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
			return nil, nil // the server stops, or the client left: there was nothing
		case <-end.C:
			return nil, nil
		case <-poll.C:
		case <-rung:
			rung = nil // what came is there now; should it be gone again, the ticker goes on
		}
		if lines, err = r.cards.Changes(ctx, after, limit+1); err != nil || len(lines) > 0 {
			return lines, err
		}
	}
}

// change says what a line of the store's feed means now, and how large the card is that it shows.
func (r *Registry) change(ctx context.Context, line store.CardChange, now time.Time) (c wire.Change, size int, err error) {
	c = wire.Change{AgentID: wire.AgentID(line.ID), At: line.At}
	card, err := r.cards.Held(ctx, line.ID, now)
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return wire.Change{}, 0, err
	case err == nil && card.Live(now):
	case line.Withdrawn || card.Withdrawn:
		c, err = r.tombstone(ctx, c, wire.ChangeWithdrawn, now)
		return c, 0, err
	default:
		if err == nil {
			c.At = card.Expires
		}
		c, err = r.tombstone(ctx, c, wire.ChangeExpired, now)
		return c, 0, err
	}
	rec, m, err := record(card, now)
	if err != nil {
		return wire.Change{}, 0, err
	}
	c.Record = &rec
	switch at := line.At; {
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

// tombstone is the line of a card that is listed no more: removed with the operator's reason, or what.
func (r *Registry) tombstone(ctx context.Context, c wire.Change, what string, now time.Time) (wire.Change, error) {
	c.Change = what
	removed, err := r.removal(ctx, c.AgentID, now)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return wire.Change{}, err
	}
	if err == nil && removed.At.Equal(c.At) { // else the card came back in between
		c.Change, c.Reason = wire.ChangeRemoved, removed.Reason
	}
	return c, nil
}

func (r *Registry) getChanges(c echo.Context) error {
	params, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return wire.ErrQuery.Because(err)
	}
	limit, wait := maxLimit, 0
	for _, p := range []struct {
		name       string
		least, max int
		to         *int
	}{{"limit", 1, maxLimit, &limit}, {"wait", 0, int(maxWait / time.Second), &wait}} {
		if !params.Has(p.name) {
			continue
		}
		n, err := strconv.ParseUint(params.Get(p.name), 10, 16)
		if err != nil || int(n) < p.least || int(n) > p.max {
			return wire.ErrQuery.At(p.name + " must be " + strconv.Itoa(p.least) + " to " + strconv.Itoa(p.max))
		}
		*p.to = int(n)
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
	data, err := json.Marshal(page)
	if err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return listedFor(c, data, "no-store") // a cache between would hold back what comes next
}
