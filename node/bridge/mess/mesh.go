package mess

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The way in from the mesh and from links (MESS section 12): a message of intent [Intent] that passed the node's checks.

// Incoming is such a message.
type Incoming struct {
	From    wire.AgentID
	Address string // of a foreign peer
	Conv    wire.ConversationID
	ID      wire.MessageID
	Payload wire.Value
}

// Receive takes a message in and returns the payload of the reply. The same message is taken once and answered the same
// way again. The error is a *wire.Error.
func (b *Bridge) Receive(ctx context.Context, m Incoming) (wire.Value, error) {
	once := &Once{key: "mesh/" + idKey(string(m.From), string(m.ID)), keep: keepMessages}
	if kept, found, err := b.x.again(ctx, once); found || err != nil {
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
	who := Actor{ID: string(m.From), Channel: "agentmesh"}
	opts := Options{Lax: m.Address != "", Peer: &thread.Peer{Conv: string(m.Conv), Address: m.Address}, External: string(m.Conv), Hold: block.WantsOwner()}
	if ref, ok := b.sentIn(ctx, who.ID, m); ok { // we wrote first: whatever is said is about that thread
		block, opts.Re, opts.Sent, opts.Follow = block.PointAt(ref).CancelAsStatus(), ref, thread.ParkedPeer, b.linkOf(m.Address) != nil
		if m.Payload.GetStr("action") == wire.ActionPending {
			opts.Sent = thread.ParkedPending
		}
	}
	if opts.Re == "" {
		ref, ok := b.onlyIn(who.ID, string(m.Conv))
		switch asks := slices.ContainsFunc(block, func(e thread.Entry) bool { return e.Type == "request" }); {
		case ok && !asks:
			block, opts.Re = pointUnknownAt(block, b.x, who.ID, ref), ref
		case !asks && strings.HasPrefix(m.Address, Kind+":"): // what was said in a foreign thread is about that thread alone
			return wire.Value{}, noThread()
		}
	}
	opts.Once = once
	l := b.linkOf(m.Address)
	if l != nil {
		if opts.Files, err = l.bring(ctx, string(m.Conv), block); err != nil {
			return wire.Value{}, err
		}
	}
	res, err := b.x.Do(ctx, who, block, opts)
	if l != nil && opts.Re != "" && thread.IsRefusal(err) {
		return ackPayload(Result{}), b.keepUnfollowed(ctx, l, opts, thread.Message{From: who.ID, Mess: block.Tree()}, thread.PublicText(err))
	}
	if opts.Re != "" && block.HasOnlyDecisions() && thread.IsRefusal(err) { // too late, or not to be done: a refusal would end the conversation
		b.log.Info("a word about a suggestion came to nothing", "peer", m.From, "thread", opts.Re, "error", err)
		return ackPayload(Result{}), nil
	}
	if err != nil {
		return wire.Value{}, err
	}
	return ackPayload(res), nil
}

// keepUnfollowed keeps in a thread what its exchange behind a link says, and what our thread cannot follow, and tells the owner.
func (b *Bridge) keepUnfollowed(ctx context.Context, l *link, opts Options, m thread.Message, why string) error {
	var more []store.Change
	if b.cfg.Notices != nil {
		title := "the thread " + opts.Re + " cannot follow what the link " + l.cfg.Name + " says of it"
		more = append(more, b.cfg.Notices.Change(notify.Notice{Kind: Kind, Title: title, Text: why + "; agentmesh mess show " + opts.Re + " has the message", At: time.Now()}))
	}
	return b.x.keepRefused(ctx, opts.Re, m, why, opts.Once, more...)
}

// onlyIn returns the one thread of a conversation that a peer opened, or the one of several that is open: a successor.
func (b *Bridge) onlyIn(who, conv string) (string, bool) {
	for _, open := range []bool{false, true} {
		refs, _ := b.x.index.page("from:"+who, position{}, 2, func(e *entry) bool { return e.external == conv && (e.status.Open() || !open) })
		if len(refs) == 1 {
			return refs[0], true
		}
	}
	return "", false
}

// pointUnknownAt points entries at ref whose own reference is the peer's word for it: what names nothing of ours.
func pointUnknownAt(b thread.Block, x *Exchange, who, ref string) thread.Block {
	out := slices.Clone(b)
	for i, e := range out {
		re := thread.FirstRef(e.Body)
		if re == "" || x.index.get(re) != nil {
			continue
		}
		if e.IsDecision() && re != "last" { // of a suggestion that is decided: nothing is said of another
			continue
		}
		if _, ok := x.index.ownWith(who, re); ok {
			continue
		}
		if _, ok := x.index.tagged(who, re); ok {
			continue
		}
		out[i].Body = e.Body.With("re", wire.Text(ref))
	}
	return out
}

// ackPayload is the synchronous reply: {"action": "ack", "ref": …, "mess": [acks]}.
func ackPayload(res Result) wire.Value {
	v := wire.Obj(wire.TextField("action", "ack"))
	if ref, ok := res.ack(); ok {
		v = v.With("ref", wire.Text(ref))
	}
	return v.With("mess", res.Answers.Tree())
}

// sentIn returns the thread that a message is about because we opened its conversation, or the one that it follows: a
// response after the close comes in a conversation of its own.
func (b *Bridge) sentIn(ctx context.Context, who string, m Incoming) (string, bool) {
	if ref, ok := b.threadOf(ctx, who, string(m.Conv)); ok {
		return ref, true
	}
	after := followed(m.Payload)
	if after == "" {
		return "", false
	}
	return b.threadOf(ctx, who, after)
}

// followed returns the closed conversation that a late response goes on with.
func followed(payload wire.Value) string {
	meta, _ := payload.Get("metadata")
	return meta.GetStr("mess_conversation")
}

func convKey(who, conv string) string { return "conv/" + idKey(who, conv) }

// pointConv has a conversation that we opened be about a thread.
func pointConv(who, conv, ref string) store.Change {
	return store.Change{Record: store.Record{NS: nsMeta, Key: convKey(who, conv), Body: []byte(ref)}, IfRev: store.Any}
}

// threadOf returns the thread that we opened a conversation about.
func (b *Bridge) threadOf(ctx context.Context, who, conv string) (string, bool) {
	rec, err := b.x.records.Get(ctx, nsMeta, convKey(who, conv), time.Now())
	return string(rec.Body), err == nil
}

// letter writes what a message of a thread says to one of its peers (MESS section 12).
func (b *Bridge) letter(ctx context.Context, t *thread.Thread, to string, m thread.Message) (Letter, error) {
	p := t.Peers[to]
	block, err := thread.FromTree(m.Mess)
	if err != nil {
		return Letter{}, err
	}
	if block, err = b.shared(ctx, t.Ref, block, p.Address); err != nil {
		return Letter{}, err
	}
	name := cmp.Or(p.Name, t.Ref)
	if to == t.Requester && p.Address != "" {
		block = toForeignEnding(t, block, m.From)
	}
	block = slices.DeleteFunc(block, func(e thread.Entry) bool {
		return e.Type == "v" || e.IsDecision() && !t.IsDecisionFor(e, to) || to != t.Requester && isHiddenFromWorker(t, e)
	}).ForExchange(name)
	l := Letter{To: wire.AgentID(to), Address: p.Address, Conv: wire.ConversationID(p.Conv), Intent: Intent}
	if to != t.Requester || !ends(t.Status) || m.Serial < t.Serial { // the close goes with the newest message
		l.Payload = wire.Obj(wire.TextField("action", actionOf(block)), wire.Field("mess", block.Tree()))
		return l, nil
	}
	if others := b.openIn(t); others { // the conversation goes on with the others
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
	l.Records = append(l.Records, store.Change{Record: store.Record{NS: nsSeen, Key: closedKey(to, p.Conv), Expires: time.Now().Add(90 * 24 * time.Hour)}})
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

// openIn says whether another thread of the same conversation is still open.
func (b *Bridge) openIn(t *thread.Thread) bool {
	if t.External == "" {
		return false
	}
	refs, _ := b.x.index.page("from:"+t.Requester, position{}, 1, func(e *entry) bool {
		return e.external == t.External && e.ref != t.Ref && e.status.Open()
	})
	return len(refs) > 0
}

// actionOf names a block by its first entry.
func actionOf(b thread.Block) string {
	for _, e := range b {
		if e.Type != "v" {
			return e.Type
		}
	}
	return "ack"
}

// offerTo sends a thread to an agent of the mesh or a peer of a link, which then may claim it.
func (b *Bridge) offerTo(ctx context.Context, ref, to, address string, more []store.Change) error {
	for range maxConflicts {
		tx := b.x.begin(Actor{ID: thread.ExchangeID, system: true}, Options{Records: more})
		t, err := tx.load(ctx, ref)
		if err != nil {
			return ignoreMissing(err)
		}
		if !t.IsClaimable() || t.Peers[to].Conv != "" {
			return b.x.records.Apply(ctx, more, time.Now())
		}
		body, err := tx.original(ctx, t)
		if err != nil {
			return err
		}
		name := t.ClientID
		if name == "" {
			name = t.Ref
			body = body.With("id", wire.Text(name))
		}
		conv := wire.NewConversationID()
		if t.Peers == nil {
			t.Peers = map[string]thread.Peer{}
		}
		t.Peers[to] = thread.Peer{Conv: string(conv), Address: address, Offered: true, Name: name}
		tx.touch(t)
		t.Version++
		block, err := b.shared(ctx, ref, thread.Block{{Type: "request", Body: body}}, address)
		if err != nil {
			return err
		}
		records := append(slices.Clone(more),
			store.Change{Record: threadRecord(t), IfRev: t.Rev},
			pointConv(to, string(conv), ref))
		_, err = b.cfg.Sender.SendLetter(ctx, Letter{
			To: wire.AgentID(to), Address: address, Conv: conv, Intent: Intent, Records: records,
			Payload: wire.Obj(wire.TextField("action", "request"), wire.Field("mess", block.Tree())),
		})
		if isConflict(err) {
			continue
		}
		if err == nil {
			b.x.index.publish(t)
		}
		return err
	}
	return store.ErrConflict
}

// candidates are the agents that the directory lists with all that a thread requires (MESS-44). What is for somebody alone
// has none.
func (b *Bridge) candidates(ctx context.Context, t *thread.Thread) ([]Agent, error) {
	if b.cfg.Directory == nil || t.Only != "" {
		return nil, nil
	}
	list, err := b.cfg.Directory(ctx, t.CapabilityIDs())
	self := wire.AgentID("")
	if b.cfg.Self != nil {
		self = b.cfg.Self()
	}
	return slices.DeleteFunc(list, func(a Agent) bool {
		return a.ID == self || string(a.ID) == t.Requester || slices.Contains(t.Declined, string(a.ID))
	}), err
}

// hears says whether somebody is told; everybody else asks.
func (b *Bridge) hears(id string) bool {
	switch {
	case id == thread.OwnerID:
		return b.cfg.Notices != nil
	case id == toDirectory:
		return b.cfg.Directory != nil && b.cfg.Sender != nil
	case strings.HasPrefix(id, "am_"):
		return b.cfg.Sender != nil
	}
	c := b.x.crew.get(id)
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

// Refusal is notAllowed for the node's handler.
func Refusal(err error) *wire.Error { return notAllowed(err) }
