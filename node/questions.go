package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsWarned    = "warned"           // the keys that storeOnce remembers
	warnListing = 3 * 24 * time.Hour // how long before the end of a listing the warnings start
	warnAtMost  = 24 * time.Hour     // how long before the end of a question the owner is warned, unless HoldFor is short
)

// warnOfExpiry warns the owner once about each question that will soon expire, and once a day about each listing that
// will soon end because its renewal failed.
func (n *Node) warnOfExpiry(ctx context.Context, now time.Time) error {
	for ask, err := range n.asks.All(ctx, acl.AskFilter{State: acl.AskPending}, now) {
		if err != nil {
			return err
		}
		if ask.Expires.Sub(now) > min(warnAtMost, n.cfg.HoldFor/7) {
			continue
		}
		view, err := owner.WithNames(OwnerAPI{n}).FindApproval(ctx, ask.ID)
		if err != nil {
			return err
		}
		title := view.ShowTitle()
		if ask.Kind == owner.AskMessage {
			title = "a message from " + view.Shown().String() // not its text (AM-36)
		}
		notice := n.notice("expiring", "", "", ask.Conv, now)
		notice.Ask, notice.Text = ask.ID, fmt.Sprintf("%s, until %s", title, ask.Expires.UTC().Format("2 Jan 15:04 MST"))
		if err := n.storeOnce(ctx, ask.ID, ask.Expires, n.notices.Change(notice), now); err != nil {
			return err
		}
	}
	for _, l := range n.Listings() {
		remaining := l.Expires.Sub(now)
		if l.State == Withdrawn || l.Error == "" || l.Expires.IsZero() || remaining > warnListing || remaining < 0 {
			continue
		}
		notice := n.notice("listing", "", "", store.ConvKey{}, now)
		notice.Text = fmt.Sprintf("%s, until %s: %s", l.Directory, l.Expires.UTC().Format("2 Jan 15:04 MST"), l.Error)
		day := now.UTC().Format(time.DateOnly)
		if err := n.storeOnce(ctx, "listing/"+l.Directory+"/"+day, l.Expires, n.notices.Change(notice), now); err != nil {
			return err
		}
	}
	return nil
}

// auditExpiry writes one audit line for each undecided question that expired, except those that wait behind another one
// about the same sender. Nothing else records the expiry, because a question expires without a write to the store.
func (n *Node) auditExpiry(ctx context.Context, now time.Time) error {
	for ask, err := range n.asks.All(ctx, acl.AskFilter{State: acl.AskExpired}, now) {
		if err != nil {
			return err
		}
		if !ask.Displaced.IsZero() {
			continue // the question had to make room for another one; the audit line was written then
		}
		mark := "expired/" + ask.ID
		if _, err := n.store.Records().Get(ctx, nsWarned, mark, now); err == nil {
			continue
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		entry := n.audit.Change(acl.AuditEntry{
			At: ask.Expires, Kind: acl.AuditExpired, Subject: ask.Subject, Rule: ask.Rule, Ask: ask.ID, AskKind: ask.Kind,
			Conversation: ask.Conv.ID, Digest: ask.Hash,
		})
		const keepMark = 60 * 24 * time.Hour // must be longer than the store keeps an expired question
		if err := n.storeOnce(ctx, mark, now.Add(keepMark), entry, now); err != nil {
			return err
		}
	}
	return nil
}

// storeOnce stores change, unless an earlier call with the same key did. The node remembers key until the given time.
func (n *Node) storeOnce(ctx context.Context, key string, until time.Time, change store.Change, now time.Time) error {
	changes := []store.Change{change, {Record: store.Record{NS: nsWarned, Key: key, Body: []byte("{}"), Expires: until}}}
	err := n.store.Records().Apply(ctx, changes, now)
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// settleExpiredAsks settles the messages whose question has expired. After an error, the alarm calls it again.
func (n *Node) settleExpiredAsks(ctx context.Context, now time.Time) {
	if !n.clock.Reliable() { // settle them when the clock is right
		n.expiryAlarm.Advance(now.Add(sweepEvery))
		return
	}
	if err := n.settleAndRearm(ctx, now); err != nil && ctx.Err() == nil {
		n.log.Warn("settle held messages", "err", err)
		n.expiryAlarm.Advance(now) // the alarm waits before it checks again
	}
}

// settleAndRearm settles the messages, records the expired questions, and sets the alarm for the pending ones.
func (n *Node) settleAndRearm(ctx context.Context, now time.Time) error {
	if err := n.settleExpiredItems(ctx, now); err != nil {
		return err
	}
	if err := n.auditExpiry(ctx, now); err != nil {
		return err
	}
	for ask, err := range n.asks.All(ctx, acl.AskFilter{State: acl.AskPending}, now) {
		if err != nil {
			return err
		}
		n.expiryAlarm.Advance(ask.Expires)
	}
	return nil
}

// reportKeyChange asks the owner about a peer's changed key (AM-11). The message with the new key was refused.
// reportKeyChange does not ask again while a question about the same peer waits, whatever the key.
func (n *Node) reportKeyChange(ctx context.Context, change client.KeyChange) {
	now := time.Now()
	standing, _ := n.rules.Standing(ctx, string(change.Agent), now) // without it, the agent counts as a stranger
	body := wire.MustMarshal(keyChangeAsk{Agent: change.Agent, Directory: change.Directory, Old: change.Old, New: change.New})
	ask, changes := n.asks.Open(acl.Ask{
		Kind: owner.AskKeyChange, Subject: string(change.Agent), Title: fmt.Sprintf("the key of %s changed", change.Agent),
		Body: body, Hash: change.New, Choices: []acl.Choice{acl.Approve, acl.Reject, acl.Block},
		Created: now, Expires: now.Add(n.cfg.HoldFor),
	}, acl.KeyChangeSlot(string(change.Agent), change.FromOwner || standing.Known()))
	notice := n.notice("key-change", change.Agent, "", store.ConvKey{Peer: string(change.Agent)}, now)
	notice.Ask = ask.ID
	if err := n.store.Records().Apply(ctx, append(changes, n.notices.Change(notice)), now); err != nil && !errors.Is(err, store.ErrConflict) {
		n.log.Error("ask about changed key", "peer", change.Agent, "err", err)
	}
}

// keyChangeAsk is the body of an owner.AskKeyChange question.
type keyChangeAsk struct {
	Agent     wire.AgentID `json:"agent_id"`
	Directory string       `json:"directory"`
	Old       string       `json:"old"` // fingerprints
	New       string       `json:"new"`
}

// resolve pins the key if the owner approves, and only the key that the owner was shown. It blocks the agent if the
// owner chose that.
func (q keyChangeAsk) resolve(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error {
	changes := d.Changes
	switch d.Choice {
	case acl.Approve:
		if q.New != ask.Hash || string(q.Agent) != ask.Subject {
			return n.refuseNotShown(ask, errors.New("the question was opened for another agent or key"))
		}
		repin, err := n.cards.RepinChanges(ctx, q.Agent, q.New, d.Now)
		if err != nil {
			return err
		}
		changes = append(changes, repin...)
	case acl.Block:
		changes = append(changes, n.rules.Change(string(q.Agent), acl.Blocked, d.Now))
	}
	if err := n.store.Records().Apply(ctx, changes, d.Now); err != nil {
		return err
	}
	n.cards.Drop(q.Agent)
	return nil
}
