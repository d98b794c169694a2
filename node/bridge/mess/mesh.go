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
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// This file handles messages from the mesh and from links (MESS section 12). They have the intent [Intent] and have
// passed the checks of the node.

// Handle implements [bridge.Handler].
func (b *Bridge) Handle(ctx context.Context, c bridge.Call) (bridge.Reply, error) {
	answer, err := b.Receive(ctx, c)
	if err == nil {
		return bridge.Reply{Payload: &answer}, nil
	}
	if refusal := refusalFor(err); !refusal.Retry {
		return bridge.Reply{Refusal: refusal}, nil
	}
	return bridge.Reply{}, err
}

// Receive applies a message and returns the payload of the reply. A repeated message changes nothing and gets the same
// reply. The error is a *wire.Error or an error of the store.
func (b *Bridge) Receive(ctx context.Context, m bridge.Call) (wire.Value, error) {
	if err := b.x.Load(); err != nil {
		return wire.Value{}, err
	}
	replay := exchange.NewMessageReplay(string(m.From), string(m.ID))
	if answer, found, err := b.x.FindAnswer(ctx, replay); found || err != nil {
		return ackPayload(answer), err
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
	// only a peer of a link has an address
	opts := exchange.Options{Lax: m.Address != "", Peer: &thread.Peer{Conv: string(m.Conv), Address: m.Address}, Hold: block.NeedsApproval()}
	ref, err := b.sentThread(ctx, who.ID, m)
	if err != nil {
		return wire.Value{}, err
	}
	l := b.linkOf(m.Address)
	if ref != "" { // we opened the conversation, so the message is about our thread
		block = block.PointAt(ref).CancelAsStatus()
		opts.Re, opts.Authority, opts.Pending = ref, exchange.SentToAgent, m.Payload.GetStr("action") == wire.ActionPending
		if l != nil {
			opts.Authority = exchange.SentToExchange
		}
	}
	if opts.Re == "" {
		ref, ok := b.x.RequestIn(who.ID, string(m.Conv))
		switch hasRequest := block.Has("request"); {
		case ok && !hasRequest:
			block, opts.Re = b.x.PointAt(block, who.ID, ref), ref
		// a message about a foreign thread must not change another thread of ours
		case !hasRequest && strings.HasPrefix(m.Address, Kind+":"):
			return wire.Value{}, thread.Missing("no such thread")
		}
	}
	opts.Replay = replay
	if l != nil {
		if opts.Files, err = l.FetchAll(ctx, who.ID, string(m.Conv), block); err != nil {
			return wire.Value{}, err
		}
	}
	res, err := b.x.Do(ctx, who, block, opts)
	if l != nil && opts.Re != "" && thread.IsRefusal(err) {
		return ackPayload(exchange.Result{}), b.keepConflict(ctx, l, opts, thread.Message{From: who.ID, Mess: block.Tree()}, thread.PublicText(err))
	}
	// the decision is too late or impossible; do not refuse it, because a refusal would end the conversation
	if opts.Re != "" && block.HasOnlyDecisions() && thread.IsRefusal(err) {
		b.log.Info("a decision about a suggestion could not be carried out", "peer", m.From, "thread", opts.Re, "error", err)
		return ackPayload(exchange.Result{}), nil
	}
	if err != nil {
		return wire.Value{}, err
	}
	return ackPayload(res), nil
}

// keepConflict stores a message of a link that our thread cannot follow, and notifies the owner, unless the message only
// reports the state in which our thread has ended.
func (b *Bridge) keepConflict(ctx context.Context, l *link, opts exchange.Options, m thread.Message, why string) error {
	t, err := b.x.Read(ctx, opts.Re, time.Now())
	if err != nil {
		return exchange.IgnoreMissing(err)
	}
	if said := m.Block(); t.Status.Terminal() && said.HasOnly("status") && t.Status.AfterBlock(said) == t.Status {
		return b.x.StoreRefusal(ctx, opts.Re, m, why, opts.Replay)
	}
	title := "the thread " + opts.Re + " cannot follow what the link " + l.cfg.Name + " says about it"
	return b.x.StoreRefusal(ctx, opts.Re, m, why, opts.Replay, ownerNotice(b.cfg.Notices, title, why+"; the thread has the message")...)
}

// ackPayload returns the synchronous reply: {"action": "ack", "ref": …, "mess": [acks]}.
func ackPayload(res exchange.Result) wire.Value {
	ref, _ := res.RequestRef()
	return wire.Obj(wire.TextField("action", "ack")).WithOptional("ref", ref).With("mess", res.Answers.Tree())
}

// sentThread returns the ref of the thread that we offered to peer in the message's conversation, or "". A response
// after the close comes in a new conversation, which names the closed one.
func (b *Bridge) sentThread(ctx context.Context, peer string, m bridge.Call) (string, error) {
	ref, err := b.x.OfferedIn(ctx, peer, string(m.Conv))
	closed := thread.ClosedConversation(m.Payload)
	if ref != "" || err != nil || closed == "" {
		return ref, err
	}
	return b.x.OfferedIn(ctx, peer, closed)
}

// newOutgoing returns the message that tells a peer about a message of a thread (MESS section 12).
func (b *Bridge) newOutgoing(ctx context.Context, t *thread.Thread, to string, m thread.Message) (bridge.Outgoing, error) {
	p := t.Peers[to]
	block, err := thread.FromTree(m.Mess)
	if err != nil {
		return bridge.Outgoing{}, err
	}
	if block, err = b.shareAttachments(ctx, t.Ref, block, p.Address); err != nil {
		return bridge.Outgoing{}, err
	}
	name := cmp.Or(p.Name, t.Ref)
	if to == t.Requester && p.Address != "" {
		block = translateEnd(t, block, m.From)
	}
	// omit versions, decisions about suggestions of others, and what a worker does not get
	block = slices.DeleteFunc(block, func(e thread.Entry) bool {
		return e.Type == "v" || e.IsDecision() && !t.IsDecisionFor(e, to) || to != t.Requester && isHiddenFromWorker(t, e)
	}).ForExchange(name).SplitAnswers()
	out := bridge.Outgoing{To: wire.AgentID(to), Address: p.Address, Conv: wire.ConversationID(p.Conv), Intent: Intent}
	// only the newest message of an ended thread closes the conversation with the requester
	if to != t.Requester || !endsConversation(t.Status) || m.Serial < t.Serial {
		out.Payload = wire.Obj(wire.TextField("action", block.Action()), wire.Field("mess", block.Tree()))
		return out, nil
	}
	if b.x.HasOpenSibling(t) { // keep the conversation open for its other threads
		out.Payload = wire.Obj(wire.TextField("action", "status"), wire.Field("mess", block.Tree()))
		return out, nil
	}
	if !block.Has("status") {
		block = append(thread.Block{t.StatusEntry()}.PointAt(name), block...)
	}
	status := "failed"
	if t.Status == thread.Completed || t.Status == thread.Partial {
		status = "completed"
	}
	out.Payload = wire.Obj(
		wire.TextField("action", wire.ActionClose), wire.TextField("status", status))
	if status == "failed" {
		reason := string(t.Status)
		if t.Status == thread.Declined && t.History[len(t.History)-1].By == thread.OwnerID {
			reason = string(wire.OwnerRejected)
		}
		out.Payload = out.Payload.With("reason", wire.Text(reason)).With("mess_code", wire.Text(string(t.Status)))
	}
	if t.Status == thread.Partial {
		out.Payload = out.Payload.With("partial", wire.Bool(true))
	}
	out.Payload = out.Payload.With("mess", block.Tree())
	return out, nil
}

// isHiddenFromWorker reports whether an entry is not sent to the peer that works on the thread. For that peer we are
// the requester, and a requester sets no states and makes no suggestions. A cancel is sent separately and tells the
// peer that the thread has ended. Replies and answers are not sent after the end.
func isHiddenFromWorker(t *thread.Thread, e thread.Entry) bool {
	switch e.Type {
	case "status", "response", "suggestion", "cancel":
		return true
	case "reply", "answer":
		return t.Status.Terminal()
	}
	return false
}

// translateEnd changes the final states in a block for a foreign exchange, where we are the executor: an executor may
// not cancel, expire or supersede somebody else's thread. Before a claim these states, and "failed", become
// "declined"; after a claim they become "failed". A state that the holder itself reports stays, but "cancelled" only
// if the requester refused a confirmation. sender is the sender of the block.
func translateEnd(t *thread.Thread, b thread.Block, sender string) thread.Block {
	out := slices.Clone(b)
	isFromHolder := t.Holder != "" && sender == t.Holder
	for i, e := range out {
		code, _ := thread.ParseCode(e.Body.GetStr("code"))
		isChanged := slices.Contains([]thread.Code{thread.Cancelled, thread.Expired, thread.Superseded}, code) || code == thread.Failed && t.Holder == ""
		switch {
		case e.Type == "cancel":
			code = thread.Cancelled
		case e.Type != "status" || !isChanged:
			continue
		case isFromHolder && (code != thread.Cancelled || t.HadRefusal()):
			continue
		}
		reported := thread.Declined
		if t.Holder != "" {
			reported = thread.Failed
		}
		reason := wire.Obj(wire.TextField("type", string(code))).WithOptional("detail", e.Body.GetStr("reason"))
		out[i] = thread.NewStatus(t.Ref, reported, wire.Field("reason", reason))
	}
	return out
}

// endsConversation reports whether a state ends the conversation. A delegated thread continues as its successor.
func endsConversation(c thread.Code) bool {
	return c.Terminal() && c != thread.Delegated || c == thread.Partial
}

// findAgents returns agents in the directory that can do a thread (MESS-44), except ourselves, the requester and agents
// that have declined.
func (b *Bridge) findAgents(ctx context.Context, t *thread.Thread) ([]Agent, error) {
	cards, err := b.cfg.Mesh.Find(ctx, client.Query{Capabilities: t.CapabilityIDs(), Intents: []wire.Intent{Intent}, Limit: 20})
	var out []Agent
	for _, c := range cards {
		if c.ID != b.cfg.Mesh.ID() && string(c.ID) != t.Requester && !slices.Contains(t.Declined, string(c.ID)) {
			out = append(out, Agent{ID: c.ID, Name: c.Name})
		}
	}
	return out, err
}

// wantsNotices decides for [exchange.Exchange.WantsNotices] who gets notices.
func (b *Bridge) wantsNotices(id string) bool {
	if id == thread.OwnerID {
		return b.cfg.Notices != nil
	}
	return id == exchange.ToDirectory || strings.HasPrefix(id, "am_") // or a peer; executors look for requests themselves
}

// refusalFor translates an error of the exchange into the error that refuses the message.
func refusalFor(err error) *wire.Error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return wire.ErrUnavailable.Because(err)
	}
	if e.Status == http.StatusNotFound || e.Status == http.StatusForbidden {
		changed := *e
		changed.Code = wire.Unauthorized
		return &changed
	}
	return e
}

// offerTo offers a thread to peer, which may then claim it. The address is "" for an agent of the mesh, and names the
// peer of a link. The extra changes are applied in the transaction that stores the offer.
func (b *Bridge) offerTo(ctx context.Context, ref, peer, address string, extra []store.Change) error {
	return b.x.OfferTo(ctx, ref, peer, address, extra, func(conv string, request wire.Value, changes []store.Change) error {
		block, err := b.shareAttachments(ctx, ref, thread.Block{{Type: "request", Body: request}}, address)
		if err != nil {
			return err
		}
		return b.send(ctx, bridge.Outgoing{
			To: wire.AgentID(peer), Address: address, Conv: wire.ConversationID(conv), Intent: Intent, Records: changes,
			Payload: wire.Obj(wire.TextField("action", "request"), wire.Field("mess", block.Tree())),
		})
	})
}
