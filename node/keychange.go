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
