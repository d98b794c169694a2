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
	"github.com/agentmesh/agentmesh/store/work"
)

const (
	nsWarned    = "warned"           // the keys that storeOnce remembers
	warnListing = 3 * 24 * time.Hour // how long before the end of a listing the warnings start
)

// workAsk warns the owner that a question will soon expire, settles what waits for a question that has expired, or
// carries out a decision about several messages.
func (n *Node) workAsk(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
	now := time.Now()
	ask, expired, changes, err := n.asks.Due(rec, now)
	if err != nil {
		return work.Later{}, err
	}
	if ask.State == acl.AskApproved || ask.State == acl.AskRejected {
		return n.workDecision(ctx, ask, changes)
	}
	if !n.clock.Reliable() {
		return work.Later{Pause: sweepEvery}, nil
	}
	if !expired {
		view, err := owner.WithNames(OwnerAPI{n}).FindApproval(ctx, ask.ID)
		if err != nil {
			return work.Later{}, err
		}
		title := view.ShowTitle()
		if ask.Kind == owner.AskMessage {
			title = "a message from " + view.Shown().String() // not its text (AM-36)
		}
		notice := n.notice("expiring", "", "", ask.Conv, now)
		notice.Ask, notice.Text = ask.ID, fmt.Sprintf("%s, until %s", title, ask.Expires.UTC().Format("2 Jan 15:04 MST"))
		return work.Later{}, n.store.Records().Apply(ctx, append(changes, n.notices.Change(notice)), now)
	}
	if ask.Conv.ID != "" { // a question that was displaced expires before its items are due
		items, err := n.itemsOf(ctx, ask.Conv, owner.ItemHeld, owner.ItemInterrupted)
		for _, item := range items {
			if item.Ask == ask.ID && err == nil {
				err = n.settleExpiredItem(ctx, item, now)
			}
		}
		if err != nil {
			return work.Later{}, err
		}
	}
	return work.Later{}, n.store.Records().Apply(ctx, changes, now)
}

// warnOfListings warns the owner once a day about each listing that will soon end because its renewal failed.
func (n *Node) warnOfListings(ctx context.Context, now time.Time) error {
	for _, l := range n.registrar.Listings() {
		remaining := l.Expires.Sub(now)
		if l.State == owner.Withdrawn || l.Error == "" || l.Expires.IsZero() || remaining > warnListing || remaining < 0 {
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

// noticeRemoval tells the owner that the operator of a directory removed the card, and why.
func (n *Node) noticeRemoval(ctx context.Context, l owner.Listing) {
	notice := n.notice("removed", "", "", store.ConvKey{}, time.Now())
	notice.Text = l.Error
	if err := n.store.Records().Apply(ctx, []store.Change{n.notices.Change(notice)}, notice.At); err != nil {
		n.log.Error("notice not stored; the status still tells of the removal", "directory", l.Directory, "err", err)
	}
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
		n.log.Error("question about a changed key not stored; the next message of the peer asks again", "peer", change.Agent, "err", err)
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
