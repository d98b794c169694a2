package mess

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// Kinds of questions to the owner.
const (
	askRegister = "mess-registration" // an executor registered on the exchange (MESS-57)
	askConfirm  = "mess-confirmation" // an executor asks the owner, who is the requester
	askRoute    = "mess-route"        // an agent in the directory could do what no local executor can (MESS-44)
	askHeld     = "mess-request"      // a request waits for the owner
)

// The bounds of the calls that run at once for notices, and for control messages.
const (
	maxCalls         = 4
	maxCallsPerParty = 1
)

// workNotice delivers a notice. If that fails, the worker tries again, and does not stop the notices to others.
func (b *Bridge) workNotice(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
	n, err := exchange.DecodeNotice(rec)
	if err != nil {
		return work.Later{}, err
	}
	later, err := b.deliverNotice(ctx, n)
	if thread.IsRefusal(err) { // it can never be delivered
		b.log.Warn("a notice was dropped", "to", n.To, "thread", n.Ref, "error", err)
		return work.Later{}, b.dropNotice(ctx, n, thread.PublicText(err))
	}
	return later, err
}

// dropNotice removes a notice that can never be delivered, and notifies the owner of the reason why.
func (b *Bridge) dropNotice(ctx context.Context, n exchange.Notice, why string) error {
	notice := ownerNotice(b.cfg.Notices, "MESS "+n.Ref+": a message to "+n.To+" could not be sent", why)
	return b.records.Apply(ctx, append(notice, n.Removal()), time.Now())
}

// deliverNotice delivers a notice to its recipient and removes it in the same transaction, unless the notice must wait.
func (b *Bridge) deliverNotice(ctx context.Context, n exchange.Notice) (later work.Later, err error) {
	removal := []store.Change{n.Removal()}
	t, err := b.x.Read(ctx, n.Ref, time.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return later, err
	case n.To == thread.OwnerID:
		return later, b.notifyOwner(ctx, t, n, removal)
	case n.To == exchange.ToDirectory:
		return b.askToRoute(ctx, t, removal)
	case n.Kind == exchange.NoticeOffer:
		return b.offerToLink(ctx, t, n.To, removal)
	case n.Kind == exchange.NoticeTaken:
		return later, b.withdrawOffer(ctx, t, n.To, removal)
	case t.Peers[n.To].Conv != "":
		return b.sendToPeer(ctx, t, n, removal)
	}
	return later, b.records.Apply(ctx, removal, time.Now())
}

// linkPause is the pause before another look at a request whose link is not configured, or that the owner holds back.
const linkPause = time.Minute

// offerToLink sends a request to the exchange of the link that alone may have it. It cancels a request that can never be
// sent.
func (b *Bridge) offerToLink(ctx context.Context, t *thread.Thread, to string, removal []store.Change) (later work.Later, err error) {
	if !t.Status.Open() || t.Holder != "" {
		return later, b.records.Apply(ctx, removal, time.Now())
	}
	for _, l := range b.links.All() {
		if string(l.Address().Pseudonym()) != to || !t.IsClaimable() {
			continue
		}
		err := l.cfg.Offer(ctx, t.Ref, to, l.Address().String(), removal)
		if thread.IsRefusal(err) {
			err = l.cancelUnsendable(ctx, t, thread.PublicText(err), removal)
		}
		return later, err
	}
	return work.Later{Pause: linkPause}, nil
}

// The close of a completed thread waits for the response, at most for completionWait.
const (
	completionWait  = 10 * time.Minute
	completionPause = time.Minute // between two looks, because the clock may be set
)

// sendToPeer sends a peer the message that the notice is about. The close of a completed thread first waits for the
// response.
func (b *Bridge) sendToPeer(ctx context.Context, t *thread.Thread, n exchange.Notice, removal []store.Change) (later work.Later, err error) {
	m, err := b.x.Message(ctx, t.Ref, n.Serial)
	if errors.Is(err, store.ErrNotFound) {
		return later, b.records.Apply(ctx, removal, time.Now())
	}
	if err != nil {
		return later, err
	}
	typeAt := func(i int) string { return m.Mess.At(i).Members()[0].Key }
	if end := t.Ended.Add(completionWait); n.To == t.Requester && t.Status == thread.Completed && typeAt(m.Mess.Len()-1) == "status" && time.Now().Before(end) {
		return work.Later{Pause: completionPause}, nil // wait for the response, which also closes the conversation
	}
	out, err := b.newOutgoing(ctx, t, n.To, m)
	if err != nil {
		return later, err
	}
	if list, _ := out.Payload.Get("mess"); list.Len() == 0 {
		return later, b.records.Apply(ctx, removal, time.Now())
	}
	out.Records = removal
	if typeAt(0) == "response" && n.To == t.Requester && endsConversation(t.Status) {
		// if the conversation is closed, the response goes into one of its own (MESS-39)
		if _, err := b.cfg.Mesh.Send(ctx, out); !errors.Is(err, wire.ErrConversationClosed) {
			return later, err
		}
		out = lateResponse(out)
	}
	return later, b.send(ctx, out)
}

// withdrawOffer tells a peer to which a thread was offered that the offer is canceled, because the thread has ended or
// somebody else has claimed it. The cancel contains this reason.
func (b *Bridge) withdrawOffer(ctx context.Context, t *thread.Thread, to string, removal []store.Change) error {
	p := t.Peers[to]
	why := "somebody else has taken it"
	switch {
	// a reason from behind a link may name a participant of the other exchange
	case t.Status == thread.Cancelled && b.linkOf(t.Peers[t.Requester].Address) == nil:
		why = t.History[len(t.History)-1].Note
	case t.Status.Terminal():
		why = "it is " + string(t.Status)
	}
	cancel := thread.NewEntry("cancel", cmp.Or(p.Name, t.Ref))
	cancel.Body = cancel.Body.WithOptional("reason", why)
	return b.send(ctx, bridge.Outgoing{
		To: wire.AgentID(to), Address: p.Address, Conv: wire.ConversationID(p.Conv), Intent: Intent, Records: removal,
		Payload: wire.Obj(wire.TextField("action", "cancel"), wire.Field("mess", thread.Block{cancel}.Tree())),
	})
}

// send sends a message into the mesh together with its changes. If the peer has ended the conversation, or the message
// waits for the owner's decision, send applies the changes alone.
func (b *Bridge) send(ctx context.Context, out bridge.Outgoing) error {
	sent, err := b.cfg.Mesh.Send(ctx, out)
	refusal, ok := errors.AsType[*wire.Error](err)
	if ok && refusal.Code == wire.ConversationClosed || err == nil && sent.State == owner.SendHeld {
		return b.records.Apply(ctx, out.Records, time.Now())
	}
	return err
}

// lateResponse turns a message after the close into a response in a conversation of its own (MESS-39).
func lateResponse(out bridge.Outgoing) bridge.Outgoing {
	meta := wire.Obj(wire.TextField("mess_conversation", string(out.Conv)))
	list, _ := out.Payload.Get("mess")
	responses := slices.DeleteFunc(slices.Collect(list.Elems()), func(e wire.Value) bool { return e.Members()[0].Key != "response" })
	out.Conv = wire.NewConversationID()
	out.Payload = wire.Obj(
		wire.TextField("action", "response"), wire.Field("mess", wire.Arr(responses...)),
		wire.Field("metadata", meta))
	return out
}

// notifyOwner stores a notice to the owner and updates the owner's inbox and questions.
func (b *Bridge) notifyOwner(ctx context.Context, t *thread.Thread, n exchange.Notice, removal []store.Change) error {
	// a confirmation is asked in a question, which comes with its own notice
	if n.Kind == exchange.NoticeTurn || strings.HasPrefix(t.Turn(), thread.TurnConfirm+"/") {
		return b.updateOwner(ctx, t, removal)
	}
	notice := notify.Notice{Kind: "mess", Title: fmt.Sprintf("MESS %s: %s", t.Ref, t.Status), At: time.Now()}
	switch {
	case n.Kind == exchange.NoticeOffer:
		notice.Title = fmt.Sprintf("MESS %s: a request waits for somebody", t.Ref)
		notice.Text = "claim it on the MESS page, or leave it to others"
	case strings.HasPrefix(t.Turn(), thread.TurnSuggestion+"/"):
		notice.Title = fmt.Sprintf("MESS %s: %s, and a suggestion waits for your decision", t.Ref, t.Status)
		notice.Text = "accept or decline it on the MESS page"
	case t.Requester == thread.OwnerID && t.Status == thread.NeedsInput:
		notice.Text = "answer it on the MESS page"
	}
	return b.updateOwner(ctx, t, append(removal, b.cfg.Notices.Change(notice)))
}

// askToRoute asks the owner whether to offer the thread to an agent of the directory that can do it. After a failed
// look-up, which may take half a minute, the other notices that need the directory wait, too.
func (b *Bridge) askToRoute(ctx context.Context, t *thread.Thread, removal []store.Change) (later work.Later, err error) {
	list, err := b.findAgents(ctx, t)
	if err != nil {
		return work.Later{Gate: exchange.ToDirectory}, err
	}
	if len(list) == 0 || !t.IsClaimable() {
		return later, b.records.Apply(ctx, removal, time.Now())
	}
	const maxCandidates = 10 // that the question shows
	list = list[:min(len(list), maxCandidates)]
	question, err := b.newQuestion(ctx, askRoute, t, askBody{Candidates: list}, "an agent of the directory could do what a request asks for")
	if err != nil {
		return later, err
	}
	err = b.records.Apply(ctx, append(slices.Clone(removal), question...), time.Now())
	// enough questions wait, and the inbox shows the request
	if errors.Is(err, store.ErrQuota) && t.Requester != thread.OwnerID {
		err = b.records.Apply(ctx, removal, time.Now())
	}
	return later, err
}

// resolverFunc carries out the owner's decision about one kind of question.
type resolverFunc func(ctx context.Context, body askBody, yes bool, changes []store.Change) error

// Resolve implements [acl.Resolver].
func (f resolverFunc) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	var body askBody
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return fmt.Errorf("decode question: %w", err)
	}
	if err := ask.CheckBody(); err != nil && d.Choice.Approves() {
		return err
	}
	return f(ctx, body, d.Choice.Approves(), d.Changes)
}

// registerResolvers registers, for each kind of question, the function that carries out the owner's decision.
func (b *Bridge) registerResolvers() {
	owner := exchange.Owner("approval")
	act := func(ctx context.Context, e thread.Entry, opts exchange.Options) error {
		_, err := b.x.Do(ctx, owner, thread.Block{e}, opts)
		return err
	}
	b.cfg.Mesh.Asks().Handle(askRegister, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		return b.x.Executors.Admit(ctx, body.Ref, yes, changes)
	}))
	b.cfg.Mesh.Asks().Handle(askConfirm, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		opts := exchange.Options{Records: changes}
		if yes {
			opts.Re, opts.IfSerial = body.Ref, body.Serial
		}
		return act(ctx, thread.NewEntry("reply", body.Ref, wire.Field("confirm", wire.Bool(yes))), opts)
	}))
	b.cfg.Mesh.Asks().Handle(askHeld, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		code := thread.Received // the request is released
		if !yes {
			code = thread.Declined
		}
		return act(ctx, thread.NewStatus(body.Ref, code, wire.TextField("reason", "the owner decided")), exchange.Options{Records: changes})
	}))
	b.cfg.Mesh.Asks().Handle(askRoute, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		if !yes || len(body.Candidates) == 0 {
			return b.records.Apply(ctx, changes, time.Now())
		}
		return b.offerTo(ctx, body.Ref, string(body.Candidates[0].ID), "", changes)
	}))
}
