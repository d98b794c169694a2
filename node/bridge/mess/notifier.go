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
)

// Kinds of questions to the owner.
const (
	askRegister = "mess-registration" // an executor registered on the exchange (MESS-57)
	askConfirm  = "mess-confirmation" // an executor asks the owner, who is the requester
	askRoute    = "mess-route"        // an agent in the directory could do what no local executor can (MESS-44)
	askHeld     = "mess-request"      // a request waits for the owner
)

// The pauses before a failed notice is tried again, and the longest sleep while a notice waits. The sleep is bounded
// because the clock may be set meanwhile.
const (
	minNoticeRetry = time.Second
	maxNoticeRetry = time.Minute
	maxNoticeSleep = time.Minute
)

// runNotifier delivers notices (somebody must learn of a message in a thread) until ctx ends. It sleeps until there
// is a new notice, a waiting notice is due, or failed notices can be tried again.
func (b *Bridge) runNotifier(ctx context.Context) error {
	if err := b.x.Load(); err != nil { // the threads are loaded here, so that they do not delay the start
		return err
	}
	pause := minNoticeRetry
	for {
		next, err := b.deliverNotices(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			b.log.Error("notices could not be delivered", "error", err)
		}
		var sleep <-chan time.Time
		switch {
		case err != nil || next.failed:
			sleep = time.After(pause)
			pause = min(2*pause, maxNoticeRetry)
		case !next.at.IsZero():
			sleep = time.After(min(max(time.Until(next.at), time.Millisecond), maxNoticeSleep))
			pause = minNoticeRetry
		default:
			pause = minNoticeRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.x.NoticeReady():
		case <-sleep:
		}
	}
}

// notifierWait says when the notifier must work again.
type notifierWait struct {
	failed bool      // a notice or control message failed and needs a retry
	at     time.Time // the time until which a notice waits; zero if none waits
}

// deliverNotices applies the control messages (see control.go) and tries every notice once. A notice that fails stays,
// and does not stop the others. After a failed look-up in the directory, deliverNotices makes no other look-up.
func (b *Bridge) deliverNotices(ctx context.Context) (next notifierWait, err error) {
	if next.failed, err = b.applyControls(ctx); err != nil {
		return next, err
	}
	directoryFailed := false
	for n, err := range b.x.Notices(ctx) {
		if err != nil {
			return next, err
		}
		if n.To == exchange.ToDirectory && directoryFailed { // each look-up may take half a minute
			continue
		}
		until, err := b.deliverNotice(ctx, n)
		if thread.IsRefusal(err) { // it can never be delivered
			b.log.Warn("a notice was dropped", "to", n.To, "thread", n.Ref, "error", err)
			err = b.dropNotice(ctx, n, thread.PublicText(err))
		}
		if ctx.Err() != nil {
			return next, ctx.Err()
		}
		if err != nil && !errors.Is(err, store.ErrConflict) {
			b.log.Info("a notice could not be delivered yet", "to", n.To, "thread", n.Ref, "error", err)
		}
		next.failed = next.failed || err != nil
		directoryFailed = directoryFailed || err != nil && n.To == exchange.ToDirectory
		if !until.IsZero() && (next.at.IsZero() || until.Before(next.at)) {
			next.at = until
		}
	}
	return next, nil
}

// dropNotice removes a notice that can never be delivered, and notifies the owner of the reason why.
func (b *Bridge) dropNotice(ctx context.Context, n exchange.Notice, why string) error {
	notice := ownerNotice(b.cfg.Notices, "MESS "+n.Ref+": a message to "+n.To+" could not be sent", why)
	return b.records.Apply(ctx, append(notice, n.Removal()), time.Now())
}

// deliverNotice delivers a notice to its recipient and removes it in the same transaction. If the notice must wait,
// deliverNotice returns the time until which it waits.
func (b *Bridge) deliverNotice(ctx context.Context, n exchange.Notice) (until time.Time, err error) {
	removal := []store.Change{n.Removal()}
	t, err := b.x.Read(ctx, n.Ref, time.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return until, err
	case n.To == thread.OwnerID:
		return until, b.notifyOwner(ctx, t, n, removal)
	case n.To == exchange.ToDirectory:
		return until, b.askToRoute(ctx, t, removal)
	case n.Kind == exchange.NoticeTaken:
		return until, b.withdrawOffer(ctx, t, n.To, removal)
	case t.Peers[n.To].Conv != "":
		return b.sendToPeer(ctx, t, n, removal)
	}
	return until, b.records.Apply(ctx, removal, time.Now())
}

// completionWait is the longest time for which the close of a completed thread waits for the response.
const completionWait = 10 * time.Minute

// sendToPeer sends a peer the message that the notice is about. The close of a completed thread first waits for the
// response, until the time that sendToPeer returns.
func (b *Bridge) sendToPeer(ctx context.Context, t *thread.Thread, n exchange.Notice, removal []store.Change) (until time.Time, err error) {
	m, err := b.x.Message(ctx, t.Ref, n.Serial)
	if errors.Is(err, store.ErrNotFound) {
		return until, b.records.Apply(ctx, removal, time.Now())
	}
	if err != nil {
		return until, err
	}
	typeAt := func(i int) string { return m.Mess.At(i).Members()[0].Key }
	if end := t.Ended.Add(completionWait); n.To == t.Requester && t.Status == thread.Completed && typeAt(m.Mess.Len()-1) == "status" && time.Now().Before(end) {
		return end, nil // wait for the response, which also closes the conversation
	}
	out, err := b.newOutgoing(ctx, t, n.To, m)
	if err != nil {
		return until, err
	}
	if list, _ := out.Payload.Get("mess"); list.Len() == 0 {
		return until, b.records.Apply(ctx, removal, time.Now())
	}
	_, err = b.records.Get(ctx, exchange.NSSeen, closedKey(n.To, string(out.Conv)), time.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return until, err
	case typeAt(0) != "response": // the message was sent with the close
		return until, b.records.Apply(ctx, removal, time.Now())
	default:
		out = lateResponse(out)
	}
	out.Records = append(out.Records, removal...)
	return until, b.send(ctx, out)
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

// closedKey returns the key of the record that marks a conversation with a peer as closed.
func closedKey(to, conv string) string { return "closed/" + exchange.IDKey(to, conv) }

// lateResponse turns a message after the close into a response in a conversation of its own (MESS-39).
func lateResponse(out bridge.Outgoing) bridge.Outgoing {
	meta := wire.Obj(wire.TextField("mess_conversation", string(out.Conv)))
	list, _ := out.Payload.Get("mess")
	responses := slices.DeleteFunc(slices.Collect(list.Elems()), func(e wire.Value) bool { return e.Members()[0].Key != "response" })
	out.Conv, out.Records = wire.NewConversationID(), nil
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

// askToRoute asks the owner whether to offer the thread to an agent of the directory that can do it.
func (b *Bridge) askToRoute(ctx context.Context, t *thread.Thread, removal []store.Change) error {
	list, err := b.findAgents(ctx, t)
	if err != nil {
		return err
	}
	if len(list) == 0 || !t.IsClaimable() {
		return b.records.Apply(ctx, removal, time.Now())
	}
	const maxCandidates = 10 // that the question shows
	list = list[:min(len(list), maxCandidates)]
	question, err := b.newQuestion(ctx, askRoute, t, askBody{Candidates: list}, "an agent of the directory could do what a request asks for")
	if err != nil {
		return err
	}
	err = b.records.Apply(ctx, append(slices.Clone(removal), question...), time.Now())
	// enough questions wait, and the inbox shows the request
	if errors.Is(err, store.ErrQuota) && t.Requester != thread.OwnerID {
		return b.records.Apply(ctx, removal, time.Now())
	}
	return err
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
