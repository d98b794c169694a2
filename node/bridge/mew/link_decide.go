package mew

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// decide fulfils or rejects a proposal in the space, named by its key, in the owner's name, and returns the id of the
// envelope that says so.
func (l *link) decide(ctx context.Context, key string, approve bool, reason string) (string, error) {
	l.mu.Lock()
	p, ok := l.board.proposal(key)
	me := l.me
	l.mu.Unlock()
	if !ok || p.decided {
		return "", fault(http.StatusNotFound, "no proposal with this key waits; agentmesh mew status lists those that do")
	}
	if p.conv != "" {
		return l.decideOurs(ctx, p, me, approve, reason)
	}
	s, err := p.decision(me, approve, reason)
	if err != nil {
		return "", err
	}
	if err := l.say(ctx, s); err != nil {
		return "", unsaid(err)
	}
	l.mu.Lock()
	l.board.settle(p.Key)
	l.mu.Unlock()
	return s.id, nil
}

// decideOurs decides about a proposal that was made to this node. Its owner is asked about it under approvals, and what
// is decided here is decided there: the node then has the bridge say it.
func (l *link) decideOurs(ctx context.Context, p PendingProposal, me string, approve bool, reason string) (string, error) {
	mesh := l.b.cfg.Mesh
	if mesh == nil {
		return "", fault(http.StatusServiceUnavailable, "this node is not connected to a mesh")
	}
	ours := proposed{Conv: p.conv, From: p.From, Envelope: p.ID, Reason: reason}
	s := ours.rejection("disagree")
	if approve {
		payload, err := wire.ParseForeign(p.Payload, envelope.MaxDepth, envelope.MaxValues)
		if err != nil {
			return "", err
		}
		s = ours.request(p.others(me), me, payload)
	}
	l.mu.Lock()
	err := l.sayable(s)
	l.mu.Unlock()
	if err != nil {
		return "", unsaid(err)
	}
	if !approve {
		if err := l.rejectFor(ctx, p.conv, reason); err != nil {
			return "", err
		}
	}
	conv := store.ConvKey{Peer: string(l.address(p.From).Pseudonym()), ID: string(p.conv)}
	if err := mesh.Decide(ctx, conv, approve); err != nil {
		if !approve {
			l.rejectFor(ctx, p.conv, "")
		}
		return "", err
	}
	l.mu.Lock()
	l.board.follow(p.conv, false)
	l.mu.Unlock()
	return s.id, nil
}

// rejectFor keeps the reason with which a proposal to this node is rejected, until its rejection has left.
func (l *link) rejectFor(ctx context.Context, conv wire.ConversationID, reason string) error {
	rec, err := l.b.cfg.Records.Get(ctx, nsLinks, l.key("prop", string(conv)), time.Now())
	if err != nil {
		return err
	}
	var p proposed
	if err := json.Unmarshal(rec.Body, &p); err != nil {
		return err
	}
	p.Reason = reason
	c := l.rememberProposal(p)
	c.IfRev = rec.Rev
	return l.b.cfg.Records.Apply(ctx, []store.Change{c}, time.Now())
}
