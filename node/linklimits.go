package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsOpened has one record for each conversation that a peer opened over a metered link.
const nsOpened = "node/opened"

// isMetered reports whether the message came over a link with a meter, which then replaces the node's own limits.
func (a *acceptance) isMetered() bool { return a.in.Meter != nil && a.in.Native == nil }

// charge implements the part of line 12 of the receive table (docs/protocol.md) that counts messages (AM-41). Only the
// first successful call charges the message.
func (a *acceptance) charge() error {
	if a.charged {
		return nil
	}
	var wait time.Duration
	if a.isMetered() {
		wait, a.charged = a.in.Meter.Charge(a.in.Draw, a.now)
	} else {
		a.drawn = acl.Charge{Sender: a.in.Principal, Conv: a.key, New: a.unit.IsNew(), Known: !a.verdict.Stranger, Token: a.in.Verified == bridge.VerifiedBearer, Sources: a.in.Sources}
		wait, a.charged = a.n.meter.Charge(a.drawn, a.now)
	}
	if !a.charged {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// refundCharge undoes the charge of a message that was refused because too many messages wait for the owner (AM-41). A
// link's own meter gives nothing back.
func (a *acceptance) refundCharge() {
	if a.charged && !a.isMetered() {
		a.n.meter.Return(a.drawn, time.Now())
		a.charged = false
	}
}

// linkOf returns the link of a foreign address, for example "mew:lab".
func linkOf(address string) string {
	link, _, _ := strings.Cut(address, "/")
	return link
}

// openedRecord returns the change that stores a record of the conversation that this message opens over a metered link.
// The record may outlive the conversation; then countOpen removes it.
func (a *acceptance) openedRecord() []store.Change {
	if !a.isMetered() || !a.unit.IsNew() || a.in.Meter.MaxOpen() == 0 {
		return nil
	}
	return []store.Change{{IfRev: store.Any, Record: store.Record{
		NS: nsOpened, Key: a.key.Peer + "/" + a.key.ID, Body: wire.MustMarshal(a.key), Terms: []string{linkOf(a.in.Address)},
		Expires: a.now.Add(a.n.cfg.Retention),
	}}}
}

// countOpen returns how many open conversations count against the limit of the message's link. If the link has fewer
// records than its limit, countOpen returns their number, although some conversations may have ended. Otherwise it
// loads the conversations and removes the records of ended ones.
func (a *acceptance) countOpen(ctx context.Context) (int, error) {
	var all []store.Record
	for rec, err := range store.AllRecords(ctx, a.n.store.Records(), nsOpened, linkOf(a.in.Address), a.now) {
		if err != nil {
			return 0, err
		}
		all = append(all, rec)
	}
	if len(all) < a.in.Meter.MaxOpen() {
		return len(all), nil
	}
	var ended []store.Change
	for _, rec := range all {
		var key store.ConvKey
		if err := json.Unmarshal(rec.Body, &key); err != nil {
			return 0, fmt.Errorf("decode an open conversation: %w", err)
		}
		thread, err := a.n.book.Load(ctx, key, a.now)
		if err != nil {
			return 0, err
		}
		if !thread.IsOpen() {
			ended = append(ended, store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: nsOpened, Key: rec.Key}})
		}
	}
	if len(ended) > 0 {
		if err := a.n.store.Records().Apply(ctx, ended, a.now); err != nil {
			return 0, err
		}
	}
	return len(all) - len(ended), nil
}
