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

// Decide fulfills or rejects the proposal with this key, in the owner's name. It returns
// the answer to the owner, which names the envelope that carries the decision.
func (l *Link) Decide(ctx context.Context, key string, approve bool, reason string) (view.Said, error) {
	reason = envelope.ToPrintable(reason, 200)
	p, me, ok := l.space.claimProposal(key)
	if !ok {
		return view.Said{}, view.NewFault(http.StatusNotFound, "no proposal with this key is pending; agentmesh mew status lists the pending ones")
	}
	if p.Conv != "" {
		id, err := l.decideOwn(ctx, p, me, approve, reason)
		if err != nil {
			return view.Said{}, err
		}
		return view.ReadSaid(id, wire.Value{}), nil
	}
	d, err := p.Decision(me, approve, reason)
	if err == nil {
		err = l.space.say(context.WithoutCancel(ctx), d) // the space may accept it after the caller gave up
	}
	if err != nil {
		l.space.withBoard(func(b *view.Board) { b.SetDecided(p.Key, false) })
		return view.Said{}, sayFault(err)
	}
	l.space.withBoard(func(b *view.Board) { b.Remove(p.Key) })
	return view.ReadSaid(d.ID, wire.Value{}), nil
}

// decideOwn decides a proposal to this node, about which there is a question to the owner. It decides that question; the
// node then calls the bridge, which sends the request or the rejection.
func (l *Link) decideOwn(ctx context.Context, p view.Proposal, me string, approve bool, reason string) (string, error) {
	mesh := l.b.cfg.Mesh
	if mesh == nil {
		return "", view.NewFault(http.StatusServiceUnavailable, "this node is not connected to a mesh")
	}
	own := storedProposal{Conv: p.Conv, From: p.From, Envelope: p.ID, Reason: reason}
	d := own.rejection("disagree")
	if approve {
		payload, err := wire.ParseForeign(p.Payload, envelope.MaxDepth, envelope.MaxValues)
		if err != nil {
			return "", err
		}
		d = own.request(p.Others(me), me, payload)
	}
	if err := l.space.check(d); err != nil {
		return "", sayFault(err)
	}
	if !approve {
		if err := l.storeReason(ctx, p.Conv, reason); err != nil {
			return "", err
		}
	}
	conv := store.ConvKey{Peer: string(l.address(p.From).Pseudonym()), ID: string(p.Conv)}
	if err := mesh.Decide(ctx, conv, approve); err != nil {
		return "", err
	}
	l.space.withBoard(func(b *view.Board) { b.SetWaiting(p.Conv, false) })
	return d.ID, nil
}

// storeReason stores the reason for a rejection that the bridge sends later.
func (l *Link) storeReason(ctx context.Context, conv wire.ConversationID, reason string) error {
	rec, err := l.records.store.Get(ctx, nsLinks, l.records.key("prop", string(conv)), time.Now())
	if err != nil {
		return err
	}
	var p storedProposal
	if err := json.Unmarshal(rec.Body, &p); err != nil {
		return err
	}
	p.Reason = reason
	c := l.rememberProposal(p)
	c.IfRev = rec.Rev
	return l.records.store.Apply(ctx, []store.Change{c}, time.Now())
}

// Say sends an envelope of the owner, as this node.
func (l *Link) Say(ctx context.Context, data []byte) (view.Said, error) {
	e, refusal := envelope.Parse(data)
	if refusal != nil {
		return view.Said{}, view.NewRefusal(refusal.Status, refusal.Payload)
	}
	d := envelope.Draft{ID: cmp.Or(e.ID, envelope.NewID()), Kind: e.Kind, To: e.To, Correlation: e.Correlation, Context: e.Context, Payload: e.Payload}
	if d.Payload.IsNull() {
		d.Payload = wire.Obj()
	}
	if (d.Kind == envelope.KindRequest || d.Kind == envelope.KindReject) && l.space.isToNode(d.Correlation) {
		return view.Said{}, view.NewFault(http.StatusConflict, "the proposal is to this node; decide it with agentmesh mew approve, agentmesh mew reject or agentmesh approvals")
	}
	answer, err := l.space.sayForAnswer(ctx, d)
	if err != nil {
		return view.Said{}, sayFault(err)
	}
	return view.ReadSaid(d.ID, answer), nil
}

// sayFault returns the error that tells the owner why an envelope was not accepted.
func sayFault(err error) error {
	if refusal, ok := errors.AsType[*refusedBySpace](err); ok {
		return view.NewRefusal(http.StatusConflict, wire.Obj(wire.TextField("error", refusal.text)))
	}
	text := "nothing was sent: "
	if mayHaveArrived(err) {
		text = "the space may have accepted it: "
	}
	return view.NewFault(http.StatusConflict, text+err.Error())
}

// mayHaveArrived reports whether the space may have accepted an envelope although say failed with err.
func mayHaveArrived(err error) bool {
	return errors.Is(err, errLinkEnded) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
