package mess

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The way in from the mesh and from links (MESS section 12): a message of intent [Intent] that passed the node's checks.

// Handle implements [bridge.Handler].
func (b *Bridge) Handle(ctx context.Context, c bridge.Call) (bridge.Reply, error) {
	answer, err := b.Receive(ctx, c)
	if err == nil {
		return bridge.Reply{Payload: &answer}, nil
	}
	if refused := notAllowed(err); !refused.Retry {
		return bridge.Reply{Refusal: refused}, nil
	}
	return bridge.Reply{}, err
}

// Receive takes a message in and returns the payload of the reply. The same message is taken once and answered the same
// way again. The error is a *wire.Error.
func (b *Bridge) Receive(ctx context.Context, m bridge.Call) (wire.Value, error) {
	once := exchange.OnceForMessage(string(m.From), string(m.ID))
	if kept, found, err := b.x.FindAnswer(ctx, once); found || err != nil {
		return ackPayload(kept), err
	}
	list, _ := m.Payload.Get("mess")
	block, err := thread.FromTree(list)
	if err != nil {
		return wire.Value{}, err
	}
	if err := block.CheckBounds(); err != nil {
		return wire.Value{}, err
	}
	who := exchange.Actor{ID: string(m.From), Channel: "agentmesh"}
	opts := exchange.Options{Lax: m.Address != "", Peer: &thread.Peer{Conv: string(m.Conv), Address: m.Address}, External: string(m.Conv), Hold: block.WantsOwner()}
	if ref, ok := b.sentIn(ctx, who.ID, m); ok { // we wrote first: whatever is said is about that thread
		block, opts.Re, opts.Sent, opts.Follow = block.PointAt(ref).CancelAsStatus(), ref, thread.ParkedPeer, b.linkOf(m.Address) != nil
		if m.Payload.GetStr("action") == wire.ActionPending {
			opts.Sent = thread.ParkedPending
		}
	}
	if opts.Re == "" {
		ref, ok := b.x.RequestIn(who.ID, string(m.Conv))
		switch asks := slices.ContainsFunc(block, func(e thread.Entry) bool { return e.Type == "request" }); {
		case ok && !asks:
			block, opts.Re = b.x.PointAt(block, who.ID, ref), ref
		case !asks && strings.HasPrefix(m.Address, Kind+":"): // what was said in a foreign thread is about that thread alone
			return wire.Value{}, thread.Missing("no such thread")
		}
	}
	opts.Once = once
	l := b.linkOf(m.Address)
	if l != nil {
		if opts.Files, err = l.FetchAll(ctx, string(m.Conv), block); err != nil {
			return wire.Value{}, err
		}
	}
	res, err := b.x.Do(ctx, who, block, opts)
	if l != nil && opts.Re != "" && thread.IsRefusal(err) {
		return ackPayload(exchange.Result{}), b.keepUnfollowed(ctx, l, opts, thread.Message{From: who.ID, Mess: block.Tree()}, thread.PublicText(err))
	}
	if opts.Re != "" && block.HasOnlyDecisions() && thread.IsRefusal(err) { // too late, or not to be done: a refusal would end the conversation
		b.log.Info("a word about a suggestion came to nothing", "peer", m.From, "thread", opts.Re, "error", err)
		return ackPayload(exchange.Result{}), nil
	}
	if err != nil {
		return wire.Value{}, err
	}
	return ackPayload(res), nil
}

// keepUnfollowed keeps in a thread what its exchange behind a link says, and what our thread cannot follow, and tells the owner.
func (b *Bridge) keepUnfollowed(ctx context.Context, l *link, opts exchange.Options, m thread.Message, why string) error {
	var more []store.Change
	if b.cfg.Notices != nil {
		title := "the thread " + opts.Re + " cannot follow what the link " + l.Name() + " says of it"
		more = append(more, b.cfg.Notices.Change(notify.Notice{Kind: Kind, Title: title, Text: why + "; agentmesh mess show " + opts.Re + " has the message", At: time.Now()}))
	}
	return b.x.KeepRefused(ctx, opts.Re, m, why, opts.Once, more...)
}

// ackPayload is the synchronous reply: {"action": "ack", "ref": …, "mess": [acks]}.
func ackPayload(res exchange.Result) wire.Value {
	v := wire.Obj(wire.TextField("action", "ack"))
	if ref, ok := res.RequestRef(); ok {
		v = v.With("ref", wire.Text(ref))
	}
	return v.With("mess", res.Answers.Tree())
}

// sentIn returns the thread that a message is about because we opened its conversation, or the one that it follows: a
// response after the close comes in a conversation of its own.
func (b *Bridge) sentIn(ctx context.Context, who string, m bridge.Call) (string, bool) {
	if ref, ok := b.x.OfferedIn(ctx, who, string(m.Conv)); ok {
		return ref, true
	}
	after := thread.ClosedConversation(m.Payload)
	if after == "" {
		return "", false
	}
	return b.x.OfferedIn(ctx, who, after)
}

// letter writes what a message of a thread says to one of its peers (MESS section 12).
func (b *Bridge) letter(ctx context.Context, t *thread.Thread, to string, m thread.Message) (bridge.Outgoing, error) {
	p := t.Peers[to]
	block, err := thread.FromTree(m.Mess)
	if err != nil {
		return bridge.Outgoing{}, err
	}
	if block, err = b.shared(ctx, t.Ref, block, p.Address); err != nil {
		return bridge.Outgoing{}, err
	}
	name := cmp.Or(p.Name, t.Ref)
	if to == t.Requester && p.Address != "" {
		block = toForeignEnding(t, block, m.From)
	}
	block = slices.DeleteFunc(block, func(e thread.Entry) bool {
		return e.Type == "v" || e.IsDecision() && !t.IsDecisionFor(e, to) || to != t.Requester && isHiddenFromWorker(t, e)
	}).ForExchange(name)
	l := bridge.Outgoing{To: wire.AgentID(to), Address: p.Address, Conv: wire.ConversationID(p.Conv), Intent: Intent}
	if to != t.Requester || !ends(t.Status) || m.Serial < t.Serial { // the close goes with the newest message
		l.Payload = wire.Obj(wire.TextField("action", block.Action()), wire.Field("mess", block.Tree()))
		return l, nil
	}
	if others := b.x.HasOpenSibling(t); others { // the conversation goes on with the others
		l.Payload = wire.Obj(wire.TextField("action", "status"), wire.Field("mess", block.Tree()))
		return l, nil
	}
	if !slices.ContainsFunc(block, func(e thread.Entry) bool { return e.Type == "status" }) {
		block = append(thread.Block{t.StatusEntry()}.PointAt(name), block...)
	}
	status := "failed"
	if t.Status == thread.Completed || t.Status == thread.Partial {
		status = "completed"
	}
	l.Payload = wire.Obj(
		wire.TextField("action", wire.ActionClose), wire.TextField("status", status))
	if status == "failed" {
		reason := string(t.Status)
		if t.Status == thread.Declined && t.History[len(t.History)-1].By == thread.OwnerID {
			reason = string(wire.OwnerRejected)
		}
		l.Payload = l.Payload.With("reason", wire.Text(reason)).With("mess_code", wire.Text(string(t.Status)))
	}
	if t.Status == thread.Partial {
		l.Payload = l.Payload.With("partial", wire.Bool(true))
	}
	l.Payload = l.Payload.With("mess", block.Tree())
	// One close for a conversation: a second one finds the mark.
	l.Records = append(l.Records, store.Change{Record: store.Record{NS: exchange.NSSeen, Key: closedKey(to, p.Conv), Expires: time.Now().Add(90 * 24 * time.Hour)}})
	return l, nil
}

// isHiddenFromWorker reports whether an entry is not sent to the peer that works on the thread. For that peer we are the
// requester, which sets no states and makes no suggestions. A cancel tells the peer that the thread has ended.
func isHiddenFromWorker(t *thread.Thread, e thread.Entry) bool {
	switch e.Type {
	case "status", "response", "suggestion", "cancel":
		return true
	case "reply", "answer":
		return t.Status.Terminal()
	}
	return false
}

// toForeignEnding spells an end that was set by another than who holds the thread as an executor of a foreign exchange may say
// it: before a claim it does not want to, after it came to nothing. Executors cancel nothing there.
func toForeignEnding(t *thread.Thread, b thread.Block, from string) thread.Block {
	out := slices.Clone(b)
	for i, e := range out {
		code, _ := thread.ParseCode(e.Body.GetStr("code"))
		switch {
		case e.Type == "cancel":
			code = thread.Cancelled
		case e.Type != "status", t.Holder != "" && from == t.Holder && (code != thread.Cancelled || t.WasRefused()), code != thread.Cancelled && code != thread.Expired && code != thread.Superseded && (code != thread.Failed || t.Holder != ""):
			continue
		}
		says, reason := thread.Declined, wire.Obj(wire.TextField("type", string(code)))
		if t.Holder != "" {
			says = thread.Failed
		}
		if why := e.Body.GetStr("reason"); why != "" {
			reason = reason.With("detail", wire.Text(why))
		}
		out[i] = thread.Entry{Type: "status", Body: wire.Obj(
			wire.TextField("re", t.Ref), wire.TextField("code", string(says)), wire.Field("reason", reason))}
	}
	return out
}

// ends says whether a state ends the conversation with the requester. A delegated thread goes on as its successor.
func ends(c thread.Code) bool { return c.Terminal() && c != thread.Delegated || c == thread.Partial }

// candidates are the agents that the directory lists with all that a thread requires (MESS-44). What is for somebody alone
// has none.
func (b *Bridge) candidates(ctx context.Context, t *thread.Thread) ([]Agent, error) {
	if b.cfg.Mesh == nil || t.Only != "" {
		return nil, nil
	}
	cards, err := b.cfg.Mesh.Find(ctx, client.Query{Capabilities: t.CapabilityIDs(), Intents: []wire.Intent{Intent}, Limit: 20})
	var out []Agent
	for _, c := range cards {
		if c.ID != b.cfg.Mesh.ID() && string(c.ID) != t.Requester && !slices.Contains(t.Declined, string(c.ID)) {
			out = append(out, Agent{ID: c.ID, Name: c.Name})
		}
	}
	return out, err
}

// hears says whether somebody is told; everybody else asks.
func (b *Bridge) hears(id string) bool {
	switch {
	case id == thread.OwnerID:
		return b.cfg.Notices != nil
	case id == exchange.ToDirectory, strings.HasPrefix(id, "am_"):
		return b.cfg.Mesh != nil
	}
	c := b.x.Executors.Get(id)
	return b.cfg.Notify && c != nil && len(c.Notifications) > 0
}

// notAllowed is what a message is refused with that the state machine does not allow, in the codes of the mesh.
func notAllowed(err error) *wire.Error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return wire.ErrUnavailable.Because(err)
	}
	if e.Status == http.StatusNotFound || e.Status == http.StatusForbidden {
		told := *e
		told.Code = wire.Unauthorized
		return &told
	}
	return e
}

// offerTo sends a thread to an agent of the mesh or a peer of a link, which then may claim it.
func (b *Bridge) offerTo(ctx context.Context, ref, to, address string, more []store.Change) error {
	return b.x.OfferTo(ctx, ref, to, address, more, func(conv string, request wire.Value, changes []store.Change) error {
		block, err := b.shared(ctx, ref, thread.Block{{Type: "request", Body: request}}, address)
		if err != nil {
			return err
		}
		_, err = b.send(ctx, bridge.Outgoing{
			To: wire.AgentID(to), Address: address, Conv: wire.ConversationID(conv), Intent: Intent, Records: changes,
			Payload: wire.Obj(wire.TextField("action", "request"), wire.Field("mess", block.Tree())),
		})
		return err
	})
}
