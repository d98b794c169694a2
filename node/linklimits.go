package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsOpened has a record for each conversation that the other side of a metered link opened.
const nsOpened = "node/opened"

// fullFor is the time after which the sender of a message should try again when too many conversations are open.
const fullFor = 10 * time.Minute

// metered reports whether the meter of a link stands in for the node's own limits.
func (a *acceptance) metered() bool { return a.in.Meter != nil && a.in.Native == nil }

// charge is the part of line 12 that counts messages (AM-41). Limits are charged once, however often the step is
// decided again.
func (a *acceptance) charge() error {
	if a.charged {
		return nil
	}
	var wait time.Duration
	if a.metered() {
		wait, a.charged = a.in.Meter.Charge(a.in.Draw, a.now)
	} else {
		a.drawn = acl.Charge{Sender: a.in.Principal, Conv: a.key, New: a.unit.New(), Known: !a.stranger, Sources: a.in.Sources}
		wait, a.charged = a.n.meter.Charge(a.drawn, a.now)
	}
	if !a.charged {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// giveBack undoes the charge of a message that is refused for want of a place: it used up nothing (AM-41).
func (a *acceptance) giveBack() {
	if a.charged && !a.metered() {
		a.n.meter.Return(a.drawn, time.Now())
		a.charged = false
	}
}

// linkOf returns the link of a foreign address, as in "mew:lab".
func linkOf(address string) string {
	link, _, _ := strings.Cut(address, "/")
	return link
}

// openable refuses a message that would open one conversation too many over its link.
func (a *acceptance) openable(ctx context.Context) error {
	if !a.metered() || !a.unit.New() || a.in.Meter.MaxOpen() == 0 {
		return nil
	}
	n, err := a.n.countOpened(ctx, linkOf(a.in.Address), a.in.Meter.MaxOpen(), a.now)
	switch {
	case err != nil:
		return err
	case n >= a.in.Meter.MaxOpen():
		return wire.ErrRateLimited.After(fullFor).Because(errManyOpen)
	}
	return nil
}

// opened returns the record of a conversation that this message opens over a metered link. It may outlive the
// conversation: [Node.countOpened] removes it then.
func (a *acceptance) opened() []store.Change {
	if !a.metered() || !a.unit.New() || a.in.Meter.MaxOpen() == 0 {
		return nil
	}
	body, err := json.Marshal(a.key)
	if err != nil {
		panic(fmt.Sprintf("encode conversation key: %v", err)) // two strings
	}
	return []store.Change{{IfRev: store.Any, Record: store.Record{
		NS: nsOpened, Key: a.key.Peer + "/" + a.key.ID, Body: body, Terms: []string{linkOf(a.in.Address)},
		Expires: a.now.Add(a.n.cfg.Retention),
	}}}
}

// countOpened returns how many conversations that were opened over a link are still open, at most enough. It looks at
// the conversations themselves only if there are that many records.
func (n *Node) countOpened(ctx context.Context, link string, enough int, now time.Time) (int, error) {
	var all []store.Record
	for after, more := "", true; more && len(all) < enough; more = after != "" {
		page, err := n.store.Records().List(ctx, nsOpened, link, after, 100, now)
		if err != nil {
			return 0, err
		}
		all, after = append(all, page.Records...), page.Next
	}
	if len(all) < enough {
		return len(all), nil
	}
	var over []store.Change
	for _, rec := range all {
		var key store.ConvKey
		if err := json.Unmarshal(rec.Body, &key); err != nil {
			return 0, fmt.Errorf("decode an open conversation: %w", err)
		}
		thread, err := n.book.Load(ctx, key, now)
		if err != nil {
			return 0, err
		}
		conv := thread.Conversation()
		if thread.New() || conv.At(now, n.book.IdleFor()) != conversations.Open {
			over = append(over, store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: nsOpened, Key: rec.Key}})
		}
	}
	if len(over) > 0 {
		if err := n.store.Records().Apply(ctx, over, now); err != nil {
			return 0, err
		}
	}
	return len(all) - len(over), nil
}

var errManyOpen = errors.New("the link has as many open conversations as it may")
