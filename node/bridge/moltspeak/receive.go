package moltspeak

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const window = 5 * time.Minute // MS-30

// exchange is one message on its way through the checks of MS-50.
type exchange struct {
	ctx    context.Context
	packet message.Packet
	m      message.Message
	peer   peer
	key    *signing.PublicKey
	now    time.Time
	size   int
	digest [32]byte
	body   message.Payload
	bound  *message.Agent // of a WebSocket
	opens  bool           // it came over a WebSocket that is not bound
	fresh  bool           // it names itself and us, and was not seen before: nobody can have recorded it (MS-2)
	signed bool           // the sender is who it says
	called bool           // it answers a call of ours
	native bool           // it carries a payload of AgentMesh

	sources []rate.Source // where it comes from, none if nothing tells its client from others

	address  bridge.Address // of the sender
	standing acl.Standing   // what the owner decided about it

	id string // of the reply
}

// answer is what is said in reply; op empty: nothing is (MS-45).
type answer struct {
	op     message.Op
	p      wire.Value
	ext    wire.Value
	status int
	user   bool // p holds what the owner's side wrote: it is scanned
	stored *seen
}

// Reply is what goes back over the wire.
type Reply struct {
	Status int
	Body   []byte
	Delay  time.Duration // Retry-After
	Sender message.Agent // verified sender of the request; zero where it is not
	Known  bool          // with Sender: it is no stranger
	Fresh  bool          // with Sender: nobody can have recorded the message and sent it again
	Forged bool          // the request's box or signature did not verify
}

func (c *exchange) replyID() string {
	if c.id == "" {
		c.id = uuid(random32())
	}
	return c.id
}

// Receive takes one message or envelope in and answers it. It never fails: what is wrong is answered with a signed
// error (MS-52). sources are those of the client. bound is the sender that a WebSocket is bound to, nil elsewhere.
func (b *Bridge) Receive(ctx context.Context, raw []byte, sources []rate.Source, bound *message.Agent) Reply {
	c := &exchange{ctx: ctx, now: time.Now(), size: len(raw), sources: sources, bound: bound}
	var e *message.Error
	if c.packet, e = message.ReadPacket(raw, b.cfg.Box); e != nil {
		return b.refuse(c, e)
	}
	return b.receive(c)
}

func (b *Bridge) receive(c *exchange) Reply {
	a, e := b.take(c)
	if e != nil {
		return b.refuse(c, e)
	}
	return b.reply(c, a)
}

// take runs the checks in the order of MS-50.
func (b *Bridge) take(c *exchange) (answer, *message.Error) {
	if e := b.authentic(c); e != nil {
		return answer{}, e
	}
	old, known, e := b.repeated(c)
	if e != nil {
		return answer{}, e
	}
	c.fresh = !known && c.m.ID != "" && c.m.To.Agent != ""
	if known && c.m.Class != message.Secret && (old.Conv == "" || c.m.Op == message.OpStream) { // nothing of the node's: a stream is gone after its end
		if len(old.Reply) > 0 {
			return answer{stored: &old, status: old.Status}, nil
		}
		return answer{}, nil
	}
	for _, check := range []func(*exchange) *message.Error{b.classified, b.capable, b.covered} {
		if e := check(c); e != nil {
			return answer{}, e
		}
	}
	if c.m.Class == message.Secret {
		return b.secret(c, known)
	}
	a, e := b.dispatch(c)
	if e == nil && len(old.Reply) > 0 { // a repeat
		a.stored, a.status = &old, old.Status
	}
	return a, e
}

// authentic are the checks that say who wrote what to whom, and when.
func (b *Bridge) authentic(c *exchange) *message.Error {
	for _, check := range []func(*exchange) *message.Error{b.shape, b.meet, b.sender, b.timely} {
		if e := check(c); e != nil {
			return e
		}
	}
	return nil
}

// shape is version, schema, payload and recipient.
func (b *Bridge) shape(c *exchange) (e *message.Error) {
	if c.m, e = message.Parse(c.packet.Tree); e != nil {
		return e
	}
	if c.body, e = c.m.Payload(); e != nil {
		return e
	}
	switch {
	case c.m.From.Agent == "" && c.bound == nil:
		return message.FailAt(message.CodeMissingField, "from", "is required")
	case c.m.From.Agent == "":
		c.m.From = *c.bound
	case c.bound != nil && c.m.From.Name() != c.bound.Name():
		return message.FailAt(message.CodeAuthFailed, "from", "is not the sender that this connection is bound to")
	}
	if c.m.To.Agent != "" && c.m.To.Name() != b.self.Name() {
		return message.FailAt(message.CodeInvalidParam, "to", "is not served at this endpoint")
	}
	return nil
}

// sender is key and signature, then the rates, which only a verified sender uses up (MS-48).
func (b *Bridge) sender(c *exchange) (e *message.Error) {
	if c.peer, c.key, e = b.pins.check(c); e != nil {
		return e
	}
	if e := c.m.Verify(c.key); e != nil {
		return e
	}
	c.signed = true
	c.digest = sha256.Sum256(signing.Canonical(c.m.Tree.Without("sig"), signing.Python))
	var wait time.Duration
	var ok bool
	if c.known() {
		wait, ok = b.known.Take(c.m.From.Name(), c.m.From.Org, c.now)
	} else {
		wait, ok = b.strangers.Take(c.m.From.Name(), c.sources, c.now)
	}
	if !ok {
		e := message.Fail(message.CodeRateLimit)
		e.Delay = wait
		return e
	}
	return b.introduced(c)
}

// introduced compares the key that a sender shows first with what others list for its name (MS-23).
func (b *Bridge) introduced(c *exchange) *message.Error {
	if c.peer.rev != store.Absent {
		return nil
	}
	w, e := b.pins.listed.lookup(c)
	switch {
	case e != nil:
		return e
	case w.key != "" && w.key != c.peer.Key:
		b.cfg.Logger.WarnContext(c.ctx, "moltspeak: a sender shows another key than is listed for its name", "peer", c.m.From.Name(), "listed_by", w.by)
		c.signed = false
		return message.Fail(message.CodeAuthFailed)
	case w.key != "":
		c.peer.Vouched = w.by
	}
	return nil
}

// timely is the window and exp (MS-30).
func (b *Bridge) timely(c *exchange) *message.Error {
	if off := c.now.Sub(c.m.Time); off.Abs() > window {
		return message.FailAt(message.CodeInvalidParam, "ts", "must be within five minutes of now")
	}
	if !c.m.Expires.IsZero() && !c.now.Before(c.m.Expires) {
		return message.FailAt(message.CodeInvalidParam, "exp", "has passed")
	}
	if e := b.pins.keep(c); e != nil {
		return e
	}
	if b.cfg.Registry {
		b.registry.proveKey(c.ctx, c.m.From.Name(), c.peer.Key, c.now)
	}
	return nil
}

// repeated finds the record of an accepted message (MS-30).
func (b *Bridge) repeated(c *exchange) (seen, bool, *message.Error) {
	var s seen
	if c.m.ID == "" {
		return s, false, nil
	}
	_, ok, err := readRecord(c.ctx, b.records, nsSeen, seenKey(c.m.From, c.m.ID), &s, c.now)
	if err != nil {
		return s, false, message.Fail(message.CodeInternal).Because(err)
	}
	if ok && s.Digest != hex.EncodeToString(c.digest[:]) {
		return s, true, idReused()
	}
	return s, ok, nil
}

func idReused() *message.Error {
	e := message.FailAt(message.CodeInvalidParam, "id", "was used before with other content")
	e.Status = http.StatusConflict
	return e
}

// classified holds a message to the handling of its class (MS-36 to MS-39).
func (b *Bridge) classified(c *exchange) *message.Error {
	name := c.m.From.Name()
	plain := c.m.Class == message.Confidential && slices.Contains(b.cfg.PlainConf, name)
	if c.m.Class.IsBoxed() && !c.packet.Boxed && !plain {
		return message.FailAt(message.CodeClassification, "cls", "travels encrypted only")
	}
	switch c.m.Class {
	case message.Secret:
		if c.m.From.Org != b.self.Org || b.cfg.Secret == nil {
			return message.FailAt(message.CodeClassification, "cls", "secrets are not taken here")
		}
	case message.PII:
		if len(c.m.Tree.JSON()) > wire.MaxMessage {
			return beyond() // it could not be handed on, and is not read for nothing
		}
		return c.m.PII.Covers(nil, c.now)
	}
	return nil
}

// covered reads a message for personal data, which takes seconds for a megabyte: after everything that is judged without
// it. A piece of a stream is read when the stream has taken it.
func (b *Bridge) covered(c *exchange) *message.Error {
	if c.m.Class != message.PII || c.m.Op == message.OpStream {
		return nil
	}
	return c.m.PII.Covers(personal.Types(c.m.P), c.now)
}

// capable is level and capability (MS-28, MS-35).
func (b *Bridge) capable(c *exchange) *message.Error {
	for _, needed := range c.m.Cap {
		if !slices.Contains(b.capabilities(), needed) {
			e := message.FailAt(message.CodeCapability, "cap", "is not offered here")
			e.Capability = ""
			return e
		}
	}
	if c.m.Op == message.OpRegister {
		return message.Fail(message.CodeCapability)
	}
	if c.m.Class == message.PII && !slices.Contains(c.peer.Granted, string(message.PII)) {
		e := message.FailAt(message.CodeCapability, "cls", "personal data is taken from peers that the owner granted it")
		e.Capability = string(message.PII)
		return e
	}
	return nil
}

// needsOwner says whether the owner's approval takes the place of a level that is missing (MS-28), or of a tool that
// the peer may not call by itself (MS-34).
func (b *Bridge) needsOwner(c *exchange) bool {
	name := c.m.From.Name()
	inSession := b.handshake.use(name, c.peer.Key, c.size, c.now)
	if t, ok := c.body.(message.Tool); ok {
		return !slices.ContainsFunc(b.cfg.Tools, func(i ToolInfo) bool { return i.Name == t.Tool && slices.Contains(i.Peers, name) })
	}
	if levelOf(c.peer, inSession, string(c.m.Op)) >= needs(c.m) || c.m.Class == message.PII {
		return false
	}
	return !c.standing.Known()
}

// secret hands a secret over from memory and keeps nothing of it but the digest of the message (MS-37).
func (b *Bridge) secret(c *exchange, known bool) (answer, *message.Error) {
	switch {
	case c.standing != acl.Allowed:
		return answer{}, message.Fail(message.CodeCapability) // nothing may wait for the owner: it would be stored
	case known:
		return answer{}, idReused()
	}
	if e := b.remember(c, seen{Digest: hex.EncodeToString(c.digest[:])}); e != nil {
		return answer{}, e
	}
	out, err := b.cfg.Secret(c.ctx, c.m.From.Name(), c.m.P)
	if err != nil {
		return answer{}, message.Fail(message.CodeTaskFailed).Because(errors.New("the handler of secrets failed")) // its words may hold the secret
	}
	return answer{op: message.OpRespond, p: message.Respond{Status: "success", Data: out}.Value(), status: http.StatusOK, user: true}, nil
}

// remember stores that a message was accepted, where no step of the node does.
func (b *Bridge) remember(c *exchange, s seen) *message.Error {
	if c.m.ID == "" {
		return nil
	}
	err := b.records.Apply(c.ctx, []store.Change{b.seenChange(c.m, s, c.known(), store.Absent, c.now)}, c.now)
	switch {
	case errors.Is(err, store.ErrConflict):
		return idReused()
	case errors.Is(err, store.ErrQuota):
		return message.Fail(message.CodeRateLimit).Because(err)
	case err != nil:
		return message.Fail(message.CodeInternal).Because(err)
	}
	return nil
}

// dispatch carries out the operation.
func (b *Bridge) dispatch(c *exchange) (answer, *message.Error) {
	var a answer
	var e *message.Error
	switch p := c.body.(type) {
	case message.Hello:
		if c.m.Op == message.OpHelloAck {
			return answer{}, nil // we send hello to links only to test them, and read the answer there
		}
		a, e = b.hello(c, p)
	case message.Verify:
		if c.m.Op == message.OpVerifyResponse {
			a, e = b.proven(c, p.Challenge)
		} else {
			a, e = b.verifyUs(c, p)
		}
	case message.Ping:
		a = answer{op: message.OpPong, p: wire.Obj(wire.Field("nonce", p.Nonce), wire.TextField("status", "alive"), wire.Field("capabilities_active", wire.Texts(b.capabilities())))}
	case message.Discover:
		a, e = b.discover(c, p)
	case message.Consent:
		a, e = b.consent(c, p)
	case message.Ack, message.Register:
		return answer{}, nil
	case message.Respond:
		if text := p.Data.GetStr("challenge"); !b.handshake.waits(c.m.From.Name(), text) {
			return b.answered(c)
		} else { // what verify_response is to peers that know the core operations alone (MS-25)
			a, e = b.proven(c, text)
		}
	case message.Fault:
		return b.answered(c)
	default:
		return b.work(c)
	}
	if e != nil {
		return a, e
	}
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a, b.remember(c, seen{Digest: hex.EncodeToString(c.digest[:])})
}

// refuse answers with a signed error. A sender that is not verified learns no more than the code.
func (b *Bridge) refuse(c *exchange, e *message.Error) Reply {
	b.cfg.Logger.DebugContext(c.ctx, "moltspeak: refused", "peer", c.m.From.Name(), "code", e.Code, "field", e.Field, "cause", e.Unwrap())
	stranger := !c.signed && (e.Code == message.CodeAuthFailed || e.Code == message.CodeSignature || e.Code == message.CodeCapability)
	r := b.reply(c, answer{op: message.OpError, p: e.Payload(stranger), status: e.Status}).after(e.Delay, e.Code)
	r.Forged = !c.signed && (e.Code == message.CodeAuthFailed || e.Code == message.CodeSignature)
	return r
}

func (r Reply) after(d time.Duration, code message.Code) Reply {
	if code == message.CodeRateLimit || code == message.CodeTimeout {
		r.Delay = max(d, time.Second)
	}
	return r
}
