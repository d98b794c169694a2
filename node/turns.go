package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsTurns has one record for each turn of the last day and each bound that it counts for, except that of its
// conversation. The store refuses a unit with ErrQuota if it has no place for another one (AM-92). A record whose key
// begins with "free/" lifts a bound until it expires (AM-93).
const (
	nsTurns = "turns"
	turnDay = 24 * time.Hour
)

// turns counts how often the agent goes on without its owner.
type turns struct {
	bounds  rules.Autonomy
	records store.Records
	taken   map[rules.Bound]*httpapi.Counter
}

// boundsFor returns the bounds for a sender that was verified like this. A caller with a token has only its own bound.
func (t turns) boundsFor(verified string) rules.Autonomy {
	bounds := t.bounds
	if verified == bridge.VerifiedBearer {
		bounds.Conversation = -1
	}
	return bounds
}

// turnBound is a bound that counts a turn, with the index term of its turns.
type turnBound struct {
	bound rules.Bound
	term  string
}

// turnBounds returns the bounds for a message of the item's sender.
func (i Item) turnBounds() []turnBound {
	if i.Verified == bridge.VerifiedBearer {
		return []turnBound{{rules.WithToken, "token:" + i.subject()}}
	}
	bounds := []turnBound{{rules.WithPeer, "peer:" + i.subject()}, {rules.InAll, "total"}}
	if i.Origin != "" && !i.Approved {
		bounds = append(bounds, turnBound{rules.WithSource, "source:" + i.Origin}, turnBound{rules.WithStrangers, "strangers"})
	}
	return bounds
}

// boundSlot returns where the questions about a bound wait: one for each conversation, peer, source, or node.
func (i Item) boundSlot(bound rules.Bound) acl.Slot {
	where := i.key().Peer + "/" + i.key().ID
	for _, b := range i.turnBounds() {
		if b.bound == bound {
			where = b.term
		}
	}
	return acl.Slot{Key: "turns/" + string(bound) + "/" + where, Term: "turns", Max: 200}
}

// take adds a turn for the message of an item to the unit, unless its route is a bridge or only asks the guard.
// lifted has the terms of bounds that the owner lifted, or all if it is nil. The unit may fail with store.ErrQuota; then
// see findSpent.
func (t turns) take(u *conversations.Unit, item Item, route Route, lifted map[string]bool) error {
	if route.Foreign || route.Name == judgeRoute.Name {
		return nil
	}
	for _, b := range item.turnBounds() {
		most := t.bounds.Most(b.bound)
		free := lifted == nil || lifted[b.term] || most < 0
		if most == 0 && !free {
			return store.ErrQuota
		}
		change := store.Change{IfRev: store.Any, Record: store.Record{
			NS: nsTurns, Key: fmt.Sprintf("%s/%s", b.bound, item.ID), Terms: []string{b.term}, Body: []byte("{}"), Expires: u.Now.Add(turnDay),
		}}
		if !free {
			change.Max = most
		}
		u.Add(change)
		u.Then(t.taken[b.bound].Inc)
	}
	if item.Verified == bridge.VerifiedBearer { // the bound of the conversation does not hold
		return nil
	}
	u.Then(t.taken[rules.InConversation].Inc)
	return u.Record(conversations.Event{Kind: conversations.TurnTaken, At: u.Now, ID: item.MessageID})
}

// findSpent returns the first bound that is used up, and the terms of those that allow any number of turns.
func (t turns) findSpent(ctx context.Context, item Item, now time.Time) (spent rules.Bound, lifted map[string]bool, err error) {
	lifted = make(map[string]bool)
	for _, b := range item.turnBounds() {
		today, err := t.today(ctx, b, now)
		switch {
		case err != nil:
			return "", nil, err
		case today.Left == nil:
			lifted[b.term] = true
		case *today.Left == 0:
			return b.bound, lifted, nil
		}
	}
	return "", lifted, nil
}

// today returns the turns of the last day that a bound counts.
func (t turns) today(ctx context.Context, b turnBound, now time.Time) (*owner.Turns, error) {
	most := t.bounds.Most(b.bound)
	used, err := t.records.Count(ctx, nsTurns, b.term, max(most, statusCap), now)
	if err != nil || most < 0 {
		return newTurns(used, -1), err
	}
	_, err = t.records.Get(ctx, nsTurns, "free/"+b.term, now)
	if errors.Is(err, store.ErrNotFound) {
		return newTurns(used, max(0, most-used)), nil
	}
	return newTurns(used, -1), err
}

// newTurns returns turns for the owner. left is negative if there is no bound.
func newTurns(used, left int) *owner.Turns {
	if left < 0 {
		return &owner.Turns{Used: used}
	}
	return &owner.Turns{Used: used, Left: &left}
}

// list returns all bounds for the owner.
func (t turns) list(ctx context.Context, now time.Time) (list []owner.Bound, err error) {
	for _, s := range t.bounds.Settings() {
		b := owner.Bound{Name: s.Key, Most: newTurns(0, s.Most).Left}
		if bound := rules.Bound(s.Key); bound == rules.InAll || bound == rules.WithStrangers {
			if b.Today, err = t.today(ctx, turnBound{bound, s.Key}, now); err != nil {
				return nil, err
			}
		}
		list = append(list, b)
	}
	return list, nil
}

// grant carries out the owner's answer about a bound: as many turns again, or any number for a day (AM-93). Of the
// messages that wait for the same answer, only the first one changes a bound that they share.
func (t turns) grant(ctx context.Context, u *conversations.Unit, item Item, bound rules.Bound, isFirst, forDay bool) error {
	if bound == rules.InConversation && !isFirst {
		return nil // the first one granted the turns that the others take
	}
	acted := conversations.Event{Kind: conversations.OwnerActed, At: u.Now}
	if forDay && bound == rules.InConversation {
		acted.Until = u.Now.Add(turnDay)
	}
	if !u.IsNew() { // our first message begins the conversation
		if err := u.Record(acted); err != nil {
			return err
		}
	}
	if !isFirst {
		return nil
	}
	for _, b := range item.turnBounds() {
		switch {
		case b.bound != bound:
		case forDay:
			u.Add(store.Change{IfRev: store.Any, Record: store.Record{
				NS: nsTurns, Key: "free/" + b.term, Body: []byte("{}"), Expires: u.Now.Add(turnDay),
			}})
		default:
			for r, err := range store.AllRecords(ctx, t.records, nsTurns, b.term, u.Now) {
				if err != nil {
					return err
				}
				u.Add(store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: nsTurns, Key: r.Key}})
			}
		}
	}
	return nil
}

// isTurn reports whether our message is a turn of its own: the agent wrote it by itself, not as its answer to an item that
// was handed to it.
func (o Outgoing) isTurn(answered Item) bool {
	return o.Via == httpapi.DoorOfAgent && answered.Route == "" && !o.isClose()
}

// asItem returns the message as what turns are counted for.
func (o Outgoing) asItem(id wire.MessageID) Item {
	return Item{Item: owner.Item{ID: string(id), Peer: o.To, Principal: o.Address, Conversation: o.Conv}}
}

// spentForAgent returns the bound at which a message that the agent wrote by itself waits for the owner, or "".
func (n *Node) spentForAgent(ctx context.Context, out Outgoing, now time.Time) (rules.Bound, error) {
	if out.Via != httpapi.DoorOfAgent {
		return "", nil
	}
	var answered Item
	if out.Answers != "" {
		var err error
		if answered, err = n.Item(ctx, out.Answers); err != nil {
			return "", err
		}
	}
	if !out.isTurn(answered) {
		return "", nil
	}
	u, err := n.book.Load(ctx, out.key(), now)
	if err != nil {
		return "", err
	}
	spent, _, err := n.turns.findSpentInAll(ctx, u.Conversation(), out.asItem(""), now)
	return spent, err
}

// findSpentInAll is [turns.findSpent] for a message that the agent writes by itself in conv, whose bound comes first.
func (t turns) findSpentInAll(ctx context.Context, conv conversations.Conversation, item Item, now time.Time) (rules.Bound, map[string]bool, error) {
	if _, left := t.bounds.Left(conv, false, now); left == 0 {
		return rules.InConversation, nil, nil
	}
	return t.findSpent(ctx, item, now)
}
