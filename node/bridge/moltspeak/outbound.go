package moltspeak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// resendWithin is how long the same bytes are sent again: within the peer's window, so that it knows them (MS-30).
const resendWithin = 4 * time.Minute

// Deliver implements [bridge.Transport].
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	address, err := bridge.ParseAddress(d.Address)
	if err != nil || address.Kind != Kind {
		return bridge.Delivered{}, fmt.Errorf("moltspeak: %q is no address of ours", d.Address)
	}
	to, ok := message.ParseName(address.Peer)
	if !ok {
		return bridge.Delivered{}, errors.New("moltspeak: a peer is agent@org")
	}
	now := time.Now()
	where, reach, err := b.where(ctx, address, to, now)
	if err == nil {
		err = b.mayCall(address.Link)
	}
	if err != nil {
		return bridge.Delivered{}, err
	}
	var t thread
	if _, _, err := readRecord(ctx, b.records, nsThreads, threadKey(d.Address, string(d.Message.Conversation)), &t, now); err != nil {
		return bridge.Delivered{}, err
	}
	drafts, err := b.drafts(d, t, to)
	if err != nil || len(drafts) == 0 {
		return bridge.Delivered{}, err
	}
	delivered := bridge.Delivered{Queued: true}
	for i, draft := range drafts {
		scanned := draft.P
		if draft.Op == message.OpStream { // whole: what lies across two chunks is in neither
			scanned = message.StreamText(d.Message.Payload)
		}
		raw, err := b.written(ctx, d, draft, scanned, i, to, where, now)
		if err != nil {
			return bridge.Delivered{}, err
		}
		if where == "" { // nobody can be called: the answer waits for the peer to repeat its message
			if err := b.keepAnswer(ctx, to, t, raw, draft, now); err != nil {
				return bridge.Delivered{}, err
			}
			continue
		}
		err = b.send(ctx, address, where, reach, raw, to, t.Boxed)
		if (errors.Is(err, errNotCallable) || errors.Is(err, errNoKey)) && draft.Op == message.OpRespond && t.Re != "" {
			err = b.keepAnswer(ctx, to, t, raw, draft, now)
		}
		if err != nil {
			return bridge.Delivered{}, err
		}
	}
	return delivered, b.settled(ctx, d, t, now)
}

// where is the endpoint of a peer: that of its link, of its open stream, or the one that it signed.
func (b *Bridge) where(ctx context.Context, a bridge.Address, to message.Agent, now time.Time) (string, client.Reach, error) {
	if l, ok := b.link(a.Link); ok {
		where, err := Endpoint(l.URL)
		return where, client.Owner, err
	}
	if a.Link != InboundLink {
		return "", 0, fmt.Errorf("moltspeak: there is no link %s", a.Link)
	}
	p, known, err := b.pins.get(ctx, to.Name(), now)
	if err != nil || !known || p.Endpoint == "" {
		return "", client.Public, err
	}
	where, err := Endpoint(p.Endpoint)
	return where, b.reach(), err
}

// errNoKey: what must be encrypted cannot be.
var errNoKey = errors.New("moltspeak: the peer has shown no encryption key")

// errNotCallable: the guard lets no call out to the endpoint that a peer named.
var errNotCallable = errors.New("moltspeak: the endpoint of the peer may not be called")

// written signs a draft, or returns what an earlier attempt signed, sealed or wrapped as its class asks.
func (b *Bridge) written(ctx context.Context, d bridge.Delivery, draft message.Draft, scanned wire.Value, part int, to message.Agent, where string, now time.Time) ([]byte, error) {
	slot := fmt.Sprintf("out %s %d", hash(d.ID), part)
	var o ours
	if _, ok, err := readRecord(ctx, b.records, nsOurs, slot, &o, now); err != nil {
		return nil, err
	} else if !ok || now.Sub(o.Sent) > resendWithin {
		out, e := b.gate(ctx, to, scanned, "out "+hash(d.ID), now)
		if e != nil {
			if e.Code == message.CodeClassification {
				return nil, fmt.Errorf("blocked: %w", e)
			}
			return nil, fmt.Errorf("blocked: %w; the message holds %s, and no consent for %s covers that", e, strings.Join(e.Types, ", "), to.Name())
		}
		class := out.class.Like(draft.Class)
		draft.ID, draft.Time, draft.From, draft.To, draft.Class, draft.PII = uuid(d.ID, fmt.Sprint(part), random32()), now, b.self, message.Agent{Agent: to.Agent, Org: to.Org}, class, out.meta
		draft.Ext = b.endpointFor(where)
		tree, err := message.Sign(draft.Tree(), b.cfg.Key)
		if err != nil {
			return nil, err
		}
		o = ours{Conv: string(d.Message.Conversation), Address: d.Address, Intent: string(d.Message.Intent), Raw: tree.JSON(), Sent: now.UTC()}
		if err := b.keepOurs(ctx, o, slot, draft, to, out.uses, now); err != nil {
			b.cfg.Logger.WarnContext(ctx, "moltspeak: keep a message of ours", "peer", to.Name(), "err", err)
			return nil, &client.SendError{Retry: true}
		}
	}
	return o.Raw, nil
}

// endpointFor is the ext that tells our endpoint to who is at where, a null value where there is nothing to tell.
func (b *Bridge) endpointFor(where string) wire.Value {
	if told := b.told(where); told != "" {
		return wire.Obj(wire.Field("agentmesh.endpoint", wire.Obj(wire.TextField("url", told))))
	}
	return wire.Value{}
}

// told is our endpoint as who is at where can call it: one of this machine is told on this machine alone. Empty where
// stands for who has a connection to us.
func (b *Bridge) told(where string) string {
	if where != "" && loopback(b.cfg.URL) && !loopback(where) {
		return ""
	}
	return b.cfg.URL
}

func loopback(target string) bool {
	u, err := url.Parse(target)
	return err == nil && httpapi.LoopbackHost(u.Host)
}

// keepOurs remembers a message of ours before it leaves, so that its answer finds the conversation.
func (b *Bridge) keepOurs(ctx context.Context, o ours, slot string, draft message.Draft, to message.Agent, uses []store.Change, now time.Time) error {
	record := func(key string, o ours, keep time.Duration) store.Change {
		return store.Change{IfRev: store.Any, Record: store.Record{NS: nsOurs, Key: key, Body: encode(o), Expires: now.Add(keep)}}
	}
	answerable := o
	answerable.Raw = nil
	changes := append(uses, record(slot, o, time.Hour), record(draft.ID, answerable, keepThreads))
	if id := draft.P.GetStr("task_id"); draft.Op == message.OpTask && id != "" {
		changes = append(changes, record("task "+hash(to.Name(), id), answerable, keepThreads))
	}
	return b.records.Apply(ctx, changes, now)
}

// settled remembers that the peer got its answer.
func (b *Bridge) settled(ctx context.Context, d bridge.Delivery, t thread, now time.Time) error {
	if t.Re == "" {
		return nil
	}
	t.State = "running"
	switch d.Message.Action() {
	case wire.ActionClose:
		t.Done, t.State = true, "completed"
		if d.Message.Payload.GetStr("status") == "failed" {
			t.State = "failed"
		}
	case wire.ActionPending, wire.ActionReceived:
		t.State = "pending"
	default:
		t.Done = t.Done || t.Op != message.OpTask
	}
	return b.records.Apply(ctx, []store.Change{b.threadChange(t, now)}, now)
}

// keepAnswer makes the answer that of a repeat, for a peer that cannot be called.
func (b *Bridge) keepAnswer(ctx context.Context, to message.Agent, t thread, raw []byte, draft message.Draft, now time.Time) error {
	if draft.Op != message.OpRespond || t.Re == "" {
		return &client.SendError{Retry: true}
	}
	var s seen
	m := message.Message{From: to, ID: t.Re}
	rev, ok, err := readRecord(ctx, b.records, nsSeen, seenKey(to, t.Re), &s, now)
	if err != nil || !ok {
		return err
	}
	s.Reply, s.Status = raw, http.StatusOK
	if body, err := b.packed(ctx, to, InboundLink, raw, t.Boxed); err == nil {
		b.sockets.push(to.Name(), body)
	}
	return b.records.Apply(ctx, []store.Change{b.seenChange(m, s, true, rev, now)}, now)
}

// send posts one message, takes in what comes back, and records what that says about the link.
func (b *Bridge) send(ctx context.Context, address bridge.Address, where string, reach client.Reach, raw []byte, to message.Agent, boxed bool) error {
	err := b.sendOnce(ctx, address, where, reach, raw, to, boxed)
	if !errors.Is(err, errNoKey) { // then no call was made
		b.stands(address.Link, err)
	}
	return err
}

// sendOnce posts one message and takes in what comes back.
func (b *Bridge) sendOnce(ctx context.Context, address bridge.Address, where string, reach client.Reach, raw []byte, to message.Agent, boxed bool) error {
	reply, err := b.post(ctx, address, where, reach, raw, to, boxed)
	if err != nil || reply == nil {
		return err
	}
	c := &exchange{ctx: ctx, now: time.Now(), packet: *reply, size: len(raw), called: true}
	if e := b.shape(c); e != nil {
		return &client.SendError{Retry: true, Processed: true, Status: http.StatusBadGateway}
	}
	if c.m.From.Name() != to.Name() {
		return errors.New("moltspeak: somebody else answered")
	}
	for _, check := range []func(*exchange) *message.Error{b.meet, b.sender, b.timely} {
		if e := check(c); e != nil {
			return fmt.Errorf("moltspeak: the answer is not taken: %w", e)
		}
	}
	if f, failed := c.body.(message.Fault); failed && f.Code != message.CodeTaskFailed {
		again := f.Recoverable && (f.Code == message.CodeRateLimit || f.Code == message.CodeTimeout || f.Code == message.CodeInternal)
		return fmt.Errorf("moltspeak: %w: %w", f, &client.SendError{Retry: again, Processed: true, After: f.Delay, Status: f.Wire().Status, Refusal: f.Wire()})
	}
	if !c.m.Op.IsAnswer() {
		return nil
	}
	if _, e := b.answered(c); e != nil && !errors.Is(e, wire.ErrConversationClosed) {
		b.cfg.Logger.WarnContext(ctx, "moltspeak: an answer was not taken", "peer", to.Name(), "err", e)
	}
	return nil
}

// packed writes a signed message of ours the way it is to travel: in a box where its class asks for one, the link does,
// or it answers what came in one. Only who may send confidential messages in the open gets them so, and only where there
// is no key.
func (b *Bridge) packed(ctx context.Context, to message.Agent, link string, raw []byte, boxed bool) ([]byte, error) {
	tree, err := wire.ParseForeign(raw, message.MaxNesting+2, message.MaxValues)
	if err != nil {
		return nil, err
	}
	class := message.ParseClass(tree.GetStr("cls"))
	if !boxed && !class.IsBoxed() && (!b.always(link) || tree.GetStr("op") == string(message.OpHello)) {
		return message.Wrap(tree, true), nil
	}
	p, _, err := b.pins.get(ctx, to.Name(), time.Now())
	if err != nil {
		return nil, err
	}
	if point, ok := message.ParsePoint(p.EncKey); ok {
		return message.Seal(tree, b.cfg.Box, point), nil
	}
	if class == message.Confidential && !boxed && slices.Contains(b.cfg.PlainConf, to.Name()) {
		return message.Wrap(tree, true), nil
	}
	return nil, errNoKey
}

// post makes the call. A nil packet is an answer that says nothing (MS-45).
func (b *Bridge) post(ctx context.Context, address bridge.Address, where string, reach client.Reach, raw []byte, to message.Agent, boxed bool) (*message.Packet, error) {
	body, err := b.packed(ctx, to, address.Link, raw, boxed)
	if err != nil {
		return nil, err
	}
	return b.transmit(ctx, where, reach, b.cfg.Tokens[address.Link], body)
}

// transmit makes a call with what is written as it is to travel.
func (b *Bridge) transmit(ctx context.Context, where string, reach client.Reach, token client.Credential, body []byte) (*message.Packet, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, where, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+string(token))
	}
	resp, err := b.cfg.HTTP.Do(ctx, reach, req)
	if err != nil {
		if _, refused := errors.AsType[*client.GuardError](err); refused {
			return nil, fmt.Errorf("%w: %w", errNotCallable, err)
		}
		return nil, &client.SendError{Retry: true}
	}
	answer, err := client.ReadAll(resp, message.MaxMessage+message.MaxWrapping)
	if err != nil {
		return nil, &client.SendError{Retry: true, Processed: true, Status: resp.StatusCode}
	}
	if text := strings.TrimSpace(string(answer)); resp.StatusCode < 300 && (text == "" || text == "{}") {
		return nil, nil
	}
	p, e := message.ReadPacket(answer, b.cfg.Box)
	if e != nil {
		return nil, &client.SendError{Retry: resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests, Processed: true, Status: resp.StatusCode}
	}
	return &p, nil
}

func (b *Bridge) always(link string) bool {
	l, ok := b.link(link)
	return ok && l.Policy.Encrypt == encryptAlways
}

// callback is an answer that nobody waits for in a step.
type callback struct {
	to message.Agent
	op message.Op
	re string
	p  wire.Value
}

// later queues a callback. A full queue drops it: the peer asks again.
func (b *Bridge) later(c callback) {
	select {
	case b.callbacks <- c:
	default:
		b.cfg.Logger.Warn("moltspeak: too many answers wait", "peer", c.to.Name())
	}
}

func (b *Bridge) call(ctx context.Context, cb callback) {
	now := time.Now()
	address := b.pins.address(cb.to)
	d := message.Draft{ID: uuid(random32()), Re: cb.re, Op: cb.op, Time: now, From: b.self, To: message.Agent{Agent: cb.to.Agent, Org: cb.to.Org}, P: cb.p, Class: message.Internal}
	p, _, err := b.pins.get(ctx, cb.to.Name(), now)
	if err != nil {
		b.cfg.Logger.WarnContext(ctx, "moltspeak: read a peer", "peer", cb.to.Name(), "err", err)
	}
	if b.coreOnly(cb.to, p) {
		d = d.InCore()
	}
	tree, err := message.Sign(d.Tree(), b.cfg.Key)
	if err != nil {
		b.cfg.Logger.ErrorContext(ctx, "moltspeak: sign an answer", "err", err)
		return
	}
	raw := tree.JSON()
	if err := b.keepAnswer(ctx, cb.to, thread{Re: cb.re}, raw, message.Draft{Op: message.OpRespond}, now); err != nil && !errors.Is(err, store.ErrConflict) {
		b.cfg.Logger.WarnContext(ctx, "moltspeak: keep an answer", "err", err)
	}
	where, reach, err := b.where(ctx, address, cb.to, now)
	if err != nil || where == "" || b.mayCall(address.Link) != nil {
		return
	}
	if _, err := b.post(ctx, address, where, reach, raw, cb.to, false); err != nil {
		b.cfg.Logger.InfoContext(ctx, "moltspeak: a peer did not take an answer; it is kept for a repeat", "peer", cb.to.Name(), "err", err)
	}
}

// challenge sends a verify and judges the answer by the key of the entry alone: nothing is pinned.
func (b *Bridge) challenge(ctx context.Context, e Entry, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, proveTime)
	defer cancel()
	key, ok := message.ParseKey(e.PublicKey)
	if !ok {
		return errors.New("its key is none")
	}
	where, err := Endpoint(e.Endpoint)
	if err != nil {
		return err
	}
	text := random32()
	d := message.Draft{
		ID: uuid(random32()), Op: message.OpVerify, Time: now, From: b.self, To: message.Agent{Agent: e.AgentName, Org: e.Org}, Class: message.Public,
		P: wire.Obj(wire.TextField("challenge", text), wire.Field("timestamp", wire.Int(now.UnixMilli()))),
	}
	tree, err := message.Sign(d.Tree(), b.cfg.Key)
	if err != nil {
		return err
	}
	reply, err := b.transmit(ctx, where, b.reach(), "", message.Wrap(tree, true))
	if err != nil {
		return err
	}
	if reply == nil {
		return errors.New("it answered nothing")
	}
	m, bad := message.Parse(reply.Tree)
	if bad == nil {
		bad = m.Verify(key)
	}
	switch {
	case bad != nil:
		return bad
	case m.From.Name() != e.ID || m.To.Name() != b.self.Name() || m.Re != d.ID || m.P.GetStr("challenge") != text:
		return errors.New("the answer is to something else, or of somebody else")
	case now.Sub(m.Time).Abs() > window:
		return errors.New("the answer is not of now")
	}
	return nil
}

// reach is how far calls to endpoints that peers name may go.
func (b *Bridge) reach() client.Reach {
	if b.cfg.Local {
		return client.Loopback
	}
	return client.Public
}
