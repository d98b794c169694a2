package link

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Decide fulfils or rejects a proposal in the space, named by its key, in the owner's name, and returns the id of the
// envelope that says so.
func (l *Link) Decide(ctx context.Context, key string, approve bool, reason string) (status int, body []byte, err error) {
	reason = envelope.ToPrintable(reason, 200)
	p, me, ok := l.space.proposal(key)
	if !ok || p.Decided {
		return 0, nil, view.NewFault(http.StatusNotFound, "no proposal with this key waits; agentmesh mew status lists those that do")
	}
	if p.Conv != "" {
		id, err := l.decideOurs(ctx, p, me, approve, reason)
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, accepted(id, wire.Value{}), nil
	}
	d, err := p.Decision(me, approve, reason)
	if err != nil {
		return 0, nil, err
	}
	if err := l.space.say(ctx, d); err != nil {
		return 0, nil, unsaid(err)
	}
	l.space.settle(p.Key)
	return http.StatusOK, accepted(d.ID, wire.Value{}), nil
}

// decideOurs decides about a proposal that was made to this node. Its owner is asked about it under approvals, and what
// is decided here is decided there: the node then has the bridge say it.
func (l *Link) decideOurs(ctx context.Context, p view.Proposal, me string, approve bool, reason string) (string, error) {
	mesh := l.b.cfg.Mesh
	if mesh == nil {
		return "", view.NewFault(http.StatusServiceUnavailable, "this node is not connected to a mesh")
	}
	ours := proposed{Conv: p.Conv, From: p.From, Envelope: p.ID, Reason: reason}
	s := ours.rejection("disagree")
	if approve {
		payload, err := wire.ParseForeign(p.Payload, envelope.MaxDepth, envelope.MaxValues)
		if err != nil {
			return "", err
		}
		s = ours.request(p.Others(me), me, payload)
	}
	if err := l.space.check(s); err != nil {
		return "", unsaid(err)
	}
	if !approve {
		if err := l.rejectFor(ctx, p.Conv, reason); err != nil {
			return "", err
		}
	}
	conv := store.ConvKey{Peer: string(l.address(p.From).Pseudonym()), ID: string(p.Conv)}
	if err := mesh.Decide(ctx, conv, approve); err != nil {
		if !approve {
			l.rejectFor(ctx, p.Conv, "")
		}
		return "", err
	}
	l.space.follow(p.Conv, false)
	return s.ID, nil
}

// rejectFor keeps the reason with which a proposal to this node is rejected, until its rejection has left.
func (l *Link) rejectFor(ctx context.Context, conv wire.ConversationID, reason string) error {
	rec, err := l.records.store.Get(ctx, nsLinks, l.records.key("prop", string(conv)), time.Now())
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
	return l.records.store.Apply(ctx, []store.Change{c}, time.Now())
}

// Say sends an envelope of the owner's as this node, and returns its id, with what the gateway answers to an invite.
func (l *Link) Say(ctx context.Context, data []byte) (status int, body []byte, err error) {
	e, refusal := envelope.Parse(data)
	if refusal != nil {
		return 0, nil, view.NewRefusal(refusal.Status, refusal.Payload)
	}
	s := envelope.Draft{ID: cmp.Or(e.ID, envelope.NewID()), Kind: e.Kind, To: e.To, Correlation: e.Correlation, Context: e.Context, Payload: e.Payload}
	if s.Payload.IsNull() {
		s.Payload = wire.Obj()
	}
	if (s.Kind == envelope.KindRequest || s.Kind == envelope.KindReject) && l.space.isOurs(s.Correlation) {
		return 0, nil, view.NewFault(http.StatusConflict, "the proposal was made to this node; decide about it with agentmesh mew approve, agentmesh mew reject or agentmesh approvals")
	}
	answer, err := l.space.sayFor(ctx, s)
	if err != nil {
		return 0, nil, unsaid(err)
	}
	return http.StatusOK, accepted(s.ID, answer), nil
}

// accepted returns what the owner is told of an envelope that the space took: its id, with what the gateway answered to an
// invite.
func accepted(id string, answer wire.Value) []byte {
	if answer.Kind() != wire.Object {
		answer = wire.Obj(wire.TextField("status", "accepted"))
	}
	return answer.With("id", wire.Text(id)).JSON()
}

// unsaid tells the owner why an envelope did not get into the space.
func unsaid(err error) error {
	if refused, ok := errors.AsType[*refusedBySpace](err); ok {
		return view.NewRefusal(http.StatusConflict, wire.Obj(wire.TextField("error", refused.text)))
	}
	return view.NewFault(http.StatusConflict, "nothing was sent: "+err.Error())
}
