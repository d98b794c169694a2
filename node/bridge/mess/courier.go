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

// The kinds of questions to the owner.
const (
	askRegister = "mess-registration" // somebody registered on the exchange (MESS-57)
	askConfirm  = "mess-confirmation" // an executor asks the owner, who is the requester
	askRoute    = "mess-route"        // an agent of the directory could do what nobody here can (MESS-44)
	askHeld     = "mess-request"      // a request that waits for the owner
)

// How soon what could not be told is tried again, at first and at last.
const (
	firstAgain = time.Second
	lastAgain  = time.Minute
	lookAgain  = time.Minute // for a notice that waits: the clock may be set meanwhile
)

// carry tells what must be told until ctx ends. It sleeps until there is something: news, a moment that a notice waits
// for, or the next try of what failed.
func (b *Bridge) carry(ctx context.Context) error {
	if err := b.x.Load(); err != nil { // first, so that what an earlier process left to be told does not hold the start up
		return err
	}
	pause := firstAgain
	for {
		next, err := b.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			b.log.Error("what waits could not be told", "error", err)
		}
		var sleep <-chan time.Time
		switch {
		case err != nil || next.tried:
			sleep = time.After(pause)
			pause = min(2*pause, lastAgain)
		case !next.at.IsZero():
			sleep = time.After(min(max(time.Until(next.at), time.Millisecond), lookAgain))
			pause = firstAgain
		default:
			pause = firstAgain
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.x.News():
		case <-sleep:
		}
	}
}

// later says when the courier has something to do again.
type later struct {
	tried bool      // something could not be told, or taken in
	at    time.Time // a notice waits until then
}

// round takes in what peers said aside and tells every notice once. One that cannot be told now stays; those behind it
// are told.
func (b *Bridge) round(ctx context.Context) (next later, err error) {
	if next.tried, err = b.takeAsides(ctx); err != nil {
		return next, err
	}
	for after := ""; ; {
		notices, more, err := b.x.Notices(ctx, after)
		if err != nil {
			return next, err
		}
		for _, n := range notices {
			until, err := b.tell(ctx, n)
			if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry { // it will not be told, ever
				b.log.Warn("a notice was dropped", "to", n.To, "thread", n.Ref, "error", err)
				err = b.records.Apply(ctx, []store.Change{n.Done()}, time.Now())
			}
			if ctx.Err() != nil {
				return next, ctx.Err()
			}
			if err != nil && !errors.Is(err, store.ErrConflict) {
				b.log.Info("a notice waits", "to", n.To, "thread", n.Ref, "error", err)
			}
			next.tried = next.tried || err != nil
			if !until.IsZero() && (next.at.IsZero() || until.Before(next.at)) {
				next.at = until
			}
		}
		if after = more; after == "" {
			return next, nil
		}
	}
}

// tell tells one notice; what it changes includes the notice's end. until says that it waits on purpose.
func (b *Bridge) tell(ctx context.Context, n exchange.Notice) (until time.Time, err error) {
	done := []store.Change{n.Done()}
	t, err := b.x.Read(ctx, n.Ref, time.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return until, err
	case n.To == thread.OwnerID:
		return until, b.tellOwner(ctx, t, n, done)
	case n.To == exchange.ToDirectory:
		return until, b.toDirectory(ctx, t, done)
	case n.Kind == exchange.NoticeTaken:
		return until, b.takeBack(ctx, t, n.To, done)
	case t.Peers[n.To].Conv != "":
		return b.tellPeer(ctx, t, n, done)
	case n.Kind == exchange.NoticeOffer:
		err := b.records.Apply(ctx, done, time.Now())
		if err == nil { // else somebody else tells it
			b.pushes.send(ctx, b.x.Executors.Get(n.To), t)
		}
		return until, err
	}
	return until, b.records.Apply(ctx, done, time.Now())
}

// completionWait is how long the close of a completed thread waits for its response.
const completionWait = 10 * time.Minute

// tellPeer sends a message of a thread into the mesh.
func (b *Bridge) tellPeer(ctx context.Context, t *thread.Thread, n exchange.Notice, done []store.Change) (until time.Time, err error) {
	m, err := b.x.Message(ctx, t.Ref, n.Serial)
	if errors.Is(err, store.ErrNotFound) {
		return until, b.records.Apply(ctx, done, time.Now())
	}
	if err != nil {
		return until, err
	}
	said := func(i int) string { return m.Mess.At(i).Members()[0].Key }
	if end := t.Ended.Add(completionWait); n.To == t.Requester && t.Status == thread.Completed && said(m.Mess.Len()-1) == "status" && time.Now().Before(end) {
		return end, nil // the response follows, and the close goes with it
	}
	l, err := b.letter(ctx, t, n.To, m)
	if err != nil {
		return until, err
	}
	if list, _ := l.Payload.Get("mess"); list.Len() == 0 {
		return until, b.records.Apply(ctx, done, time.Now())
	}
	closed, err := b.records.Get(ctx, exchange.NSSeen, closedKey(n.To, string(l.Conv)), time.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return until, err
	case said(0) != "response": // it was said with the close
		return until, b.records.Apply(ctx, done, time.Now())
	default:
		l = late(l, wire.MessageID(closed.Body))
	}
	mark := l.Records // of the close, where this is one
	l.Records = append(slices.Clone(l.Records), done...)
	id, err := b.send(ctx, l)
	if err == nil && len(mark) > 0 && id != "" { // a late response names it; without, it names the conversation alone
		mark[0].Record.Body, mark[0].IfRev = []byte(id), store.Any
		err = b.records.Apply(ctx, mark, time.Now())
	}
	return until, err
}

// takeBack cancels a thread where it was sent: it has ended, or somebody else has claimed it. Who was asked knows but this
// one word of who asks.
func (b *Bridge) takeBack(ctx context.Context, t *thread.Thread, to string, done []store.Change) error {
	p := t.Peers[to]
	body := wire.Obj(wire.TextField("re", cmp.Or(p.Name, t.Ref)))
	why := "somebody else has taken it"
	switch {
	case t.Status == thread.Cancelled:
		why = t.History[len(t.History)-1].Note
	case t.Status.Terminal():
		why = "it is " + string(t.Status)
	}
	if why != "" {
		body = body.With("reason", wire.Text(why))
	}
	_, err := b.send(ctx, bridge.Outgoing{
		To: wire.AgentID(to), Address: p.Address, Conv: wire.ConversationID(p.Conv), Intent: Intent, Records: done,
		Payload: wire.Obj(wire.TextField("action", "cancel"), wire.Field("mess", thread.Block{{Type: "cancel", Body: body}}.Tree())),
	})
	return err
}

// send sends into the mesh. The id is that of the message, "" if the owner is asked first.
func (b *Bridge) send(ctx context.Context, out bridge.Outgoing) (wire.MessageID, error) {
	sent, err := b.cfg.Mesh.Send(ctx, out)
	if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Code == wire.ConversationClosed { // nobody is there any more
		return "", b.records.Apply(ctx, out.Records, time.Now())
	}
	if err == nil && sent.State == owner.SendHeld { // the owner decides about it from now on
		err = b.records.Apply(ctx, out.Records, time.Now())
	}
	return sent.MessageID, err
}

// closedKey is the record that a conversation with a peer was closed; its body is the id of the close.
func closedKey(to, conv string) string { return "closed/" + exchange.IDKey(to, conv) }

// late is a response after the close: a conversation of its own (MESS-39).
func late(l bridge.Outgoing, last wire.MessageID) bridge.Outgoing {
	meta := wire.Obj(wire.TextField("mess_conversation", string(l.Conv)))
	if last != "" {
		meta = meta.With("in_reply_to", wire.Text(string(last)))
	}
	list, _ := l.Payload.Get("mess")
	responses := slices.DeleteFunc(slices.Collect(list.Elems()), func(e wire.Value) bool { return e.Members()[0].Key != "response" })
	l.Conv, l.Records = wire.NewConversationID(), nil
	l.Payload = wire.Obj(
		wire.TextField("action", "response"), wire.Field("mess", wire.Arr(responses...)),
		wire.Field("metadata", meta))
	return l
}

// tellOwner puts a notice into the owner's box, and what is to be done about the thread on the owner's desk.
func (b *Bridge) tellOwner(ctx context.Context, t *thread.Thread, n exchange.Notice, done []store.Change) error {
	if n.Kind == exchange.NoticeTurn || strings.HasPrefix(t.Turn(), thread.TurnConfirm+"/") { // of a question the owner is told with it
		return b.lay(ctx, t, done)
	}
	notice := notify.Notice{Kind: "mess", Title: fmt.Sprintf("MESS %s: %s", t.Ref, t.Status), At: time.Now()}
	switch {
	case n.Kind == exchange.NoticeOffer:
		notice.Title = fmt.Sprintf("MESS %s: a request waits for somebody", t.Ref)
		notice.Text = "agentmesh inbox, or agentmesh mess show " + t.Ref + ", then agentmesh mess claim " + t.Ref
	case strings.HasPrefix(t.Turn(), thread.TurnSuggestion+"/"):
		notice.Title = fmt.Sprintf("MESS %s: %s, and a suggestion waits for your word", t.Ref, t.Status)
		notice.Text = "agentmesh inbox, or agentmesh mess show " + t.Ref + ", then agentmesh reply ITEM --action accept or decline"
	case t.Requester == thread.OwnerID && t.Status == thread.NeedsInput:
		notice.Text = "agentmesh inbox, or agentmesh mess show " + t.Ref + ", then agentmesh mess answer " + t.Ref + " FIELD=VALUE"
	}
	return b.lay(ctx, t, append(done, b.cfg.Notices.Change(notice)))
}

// toDirectory looks for agents that could do what nobody here can.
func (b *Bridge) toDirectory(ctx context.Context, t *thread.Thread, done []store.Change) error {
	list, err := b.candidates(ctx, t)
	if err != nil {
		return err
	}
	switch {
	case len(list) == 0 && len(t.Declined) > 0:
		return b.x.GiveUp(ctx, t.Ref, done)
	case len(list) == 0 || !t.IsClaimable():
		return b.records.Apply(ctx, done, time.Now())
	case b.cfg.Route:
		return b.offerTo(ctx, t.Ref, string(list[0].ID), "", done)
	case b.cfg.Mesh == nil:
		return b.records.Apply(ctx, done, time.Now())
	}
	if len(list) > 10 {
		list = list[:10]
	}
	question, err := b.question(ctx, askRoute, t, askBody{Candidates: list}, "an agent of the directory could do what a request asks for")
	if err != nil {
		return err
	}
	err = b.ask(ctx, append(slices.Clone(done), question...))
	if errors.Is(err, store.ErrQuota) && t.Requester != thread.OwnerID { // enough waits for the owner, whose inbox has the request
		return b.records.Apply(ctx, done, time.Now())
	}
	return err
}

// resolverFunc carries out the owner's word on one kind of question.
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

func (b *Bridge) resolvers() {
	owner := exchange.Owner("approval")
	act := func(ctx context.Context, e thread.Entry, opts exchange.Options) error {
		_, err := b.x.Do(ctx, owner, thread.Block{e}, opts)
		return err
	}
	re := func(ref string, more ...wire.Member) wire.Value {
		return wire.Obj(append([]wire.Member{{Key: "re", Value: wire.Text(ref)}}, more...)...)
	}
	b.cfg.Mesh.Asks().Handle(askRegister, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		return b.x.Executors.Admit(ctx, body.Ref, yes, changes)
	}))
	b.cfg.Mesh.Asks().Handle(askConfirm, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		opts := exchange.Options{Records: changes}
		if yes {
			opts.Re, opts.IfSerial = body.Ref, cmp.Or(body.Serial, -1) // none: it was asked before questions named one
		}
		return act(ctx, thread.Entry{Type: "reply", Body: re(body.Ref, wire.Field("confirm", wire.Bool(yes)))}, opts)
	}))
	b.cfg.Mesh.Asks().Handle(askHeld, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		code := thread.Received
		if !yes {
			code = thread.Declined
		}
		err := act(ctx, thread.Entry{Type: "status", Body: re(body.Ref, wire.TextField("code", string(code)),
			wire.TextField("reason", "the owner decided"))}, exchange.Options{Records: changes})
		if err == nil && yes {
			err = b.x.Release(ctx, body.Ref)
		}
		return err
	}))
	b.cfg.Mesh.Asks().Handle(askRoute, resolverFunc(func(ctx context.Context, body askBody, yes bool, changes []store.Change) error {
		if !yes || len(body.Candidates) == 0 {
			return b.records.Apply(ctx, changes, time.Now())
		}
		return b.offerTo(ctx, body.Ref, string(body.Candidates[0].ID), "", changes)
	}))
}
