package moltspeak

import (
	"context"
	"crypto/sha256"
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

const window = 5 * time.Minute // how far the time of a message may be from ours (MS-30)

// request is one message on its way through the checks of MS-50.
type request struct {
	ctx         context.Context
	packet      message.Packet
	m           message.Message
	peer        peer
	key         *signing.PublicKey
	now         time.Time
	digest      [32]byte
	body        message.Payload
	boundTo     *message.Agent // the sender to which the WebSocket is bound; nil if it is not bound, and for HTTP requests
	unbound     bool           // the message came over a WebSocket that is not bound yet
	fresh       bool           // it has an id and names us, and we never received it before, so it is not a replayed recording (MS-2)
	signed      bool           // the signature verified
	answersCall bool           // the message answers our call
	meshPayload bool           // the message contains an AgentMesh payload

	sources []rate.Source // the client's address and networks, for rate limits; empty if unknown

	address  bridge.Address // the address of the sender
	standing acl.Standing   // what the owner decided about the sender
}

// answer is the content of the reply to a message. If op is empty and stored has no reply, no reply is sent (MS-45).
type answer struct {
	op        message.Op
	p         wire.Value
	ext       wire.Value
	status    int          // HTTP status; 0 means 200
	fromOwner bool         // p contains text from the owner's side, so reply scans it for personal data
	stored    replayRecord // if the message is a repeat: its reply is sent again
}

// Response is the HTTP response or WebSocket message that carries the reply to one message.
type Response struct {
	Status int
	Body   []byte
	Delay  time.Duration // Retry-After
	Sender message.Agent // verified sender of the request; zero if it is not verified
	Known  bool          // Sender is a known peer, not a stranger
	Fresh  bool          // Sender is set, and the message cannot be a replayed recording
	Forged bool          // the request was refused because its encryption, sender, key or signature did not verify
}

// Receive handles one message or envelope and returns the response. It never fails: an error becomes a signed error
// message (MS-52). sources are the client's address and networks, for rate limits. boundTo is the sender to which
// the WebSocket is bound; it is nil for HTTP requests.
func (b *Bridge) Receive(ctx context.Context, raw []byte, sources []rate.Source, boundTo *message.Agent) Response {
	c := &request{ctx: ctx, now: time.Now(), sources: sources, boundTo: boundTo}
	var e *message.Error
	if c.packet, e = message.ReadPacket(raw, b.cfg.Box); e != nil {
		return b.refuse(c, e)
	}
	return b.receive(c)
}

func (b *Bridge) receive(c *request) Response {
	a, e := b.process(c)
	if e != nil {
		return b.refuse(c, e)
	}
	return b.reply(c, a)
}

// process runs the checks in the order of MS-50 and carries out the operation.
func (b *Bridge) process(c *request) (answer, *message.Error) {
	if e := b.authenticate(c); e != nil {
		return answer{}, e
	}
	old, isRepeat, e := b.replays.find(c)
	if e != nil {
		return answer{}, e
	}
	c.fresh = !isRepeat && c.m.ID != "" && c.m.To.Agent != ""
	// If the record of a repeat has a conversation, the node accepted the original, and recognizes the repeat itself.
	// The bridge answers the other repeats, and each repeated part of a stream, because the stream may be gone.
	// handleSecret refuses a repeated secret.
	if isRepeat && c.m.Class != message.Secret && (old.Conv == "" || c.m.Op == message.OpStream) {
		return answer{stored: old}, nil
	}
	if e := b.checkContent(c); e != nil {
		return answer{}, e
	}
	if c.m.Class == message.Secret {
		return b.handleSecret(c, isRepeat)
	}
	a, e := b.dispatch(c)
	a.stored = old
	return a, e
}

func (b *Bridge) authenticate(c *request) *message.Error {
	for _, check := range []func(*request) *message.Error{b.checkShape, b.checkStanding, b.checkSender, b.checkTime} {
		if e := check(c); e != nil {
			return e
		}
	}
	return nil
}

// checkShape checks version, schema, payload, sender and recipient. A message without a sender gets the one to
// which the WebSocket is bound.
func (b *Bridge) checkShape(c *request) (e *message.Error) {
	if c.m, e = message.Parse(c.packet.Tree); e != nil {
		return e
	}
	if c.body, e = c.m.Payload(); e != nil {
		return e
	}
	switch {
	case c.m.From.Agent == "" && c.boundTo == nil:
		return message.FailAt(message.CodeMissingField, "from", "is required")
	case c.m.From.Agent == "":
		c.m.From = *c.boundTo
	case c.boundTo != nil && c.m.From.Name() != c.boundTo.Name():
		return message.FailAt(message.CodeAuthFailed, "from", "is not the sender that this connection is bound to")
	}
	if c.m.To.Agent != "" && c.m.To.Name() != b.self.Name() {
		return message.FailAt(message.CodeInvalidParam, "to", "is not served at this endpoint")
	}
	return nil
}

// checkSender checks the key and the signature. Then it charges the message, so that only verified messages use up the
// quota of a sender (MS-48). An answer to our call costs the peer nothing, because we asked for it.
func (b *Bridge) checkSender(c *request) (e *message.Error) {
	if c.peer, c.key, e = b.pins.findSender(c); e != nil {
		return e
	}
	if e := c.m.Verify(c.key); e != nil {
		return e
	}
	c.signed = true
	c.digest = sha256.Sum256(signing.Canonical(c.m.Tree.Without("sig"), signing.Python))
	if !c.answersCall {
		if e := b.quotas.charge(c); e != nil {
			return e
		}
	}
	return b.checkListedKey(c)
}

// checkListedKey compares the key of a new sender with the keys that registries and cards list for its name (MS-23).
func (b *Bridge) checkListedKey(c *request) *message.Error {
	if c.peer.rev != store.Absent {
		return nil
	}
	listed, e := b.pins.listed.lookup(c)
	switch {
	case e != nil:
		return e
	case listed.key != "" && listed.key != c.peer.Key:
		b.cfg.Logger.WarnContext(c.ctx, "moltspeak: a sender shows a key other than the one listed for its name", "peer", c.m.From.Name(), "listed_by", listed.by)
		c.signed = false // not by the agent with this name
		return message.Fail(message.CodeAuthFailed)
	case listed.key != "":
		c.peer.Vouched = listed.by
	}
	return nil
}

// checkTime checks ts and exp (MS-30). Then it pins the key of the sender, and tells our registry that the sender has
// used it.
func (b *Bridge) checkTime(c *request) *message.Error {
	if off := c.now.Sub(c.m.Time); off.Abs() > window {
		return message.FailAt(message.CodeInvalidParam, "ts", "must be within five minutes of now")
	}
	if !c.m.Expires.IsZero() && !c.now.Before(c.m.Expires) {
		return message.FailAt(message.CodeInvalidParam, "exp", "has passed")
	}
	if e := b.pins.update(c); e != nil {
		return e
	}
	if b.registry != nil {
		b.registry.ProveKey(c.ctx, c.m.From.Name(), c.peer.Key, c.now)
	}
	return nil
}

func errReusedID() *message.Error {
	e := message.FailAt(message.CodeInvalidParam, "id", "was used before with other content")
	e.Status = http.StatusConflict
	return e
}

// checkContent checks the class of a message, the capabilities that it requires, and its consent.
func (b *Bridge) checkContent(c *request) *message.Error {
	for _, check := range []func(*request) *message.Error{b.checkClass, b.checkCapability, (*request).checkConsent} {
		if e := check(c); e != nil {
			return e
		}
	}
	return nil
}

// checkClass checks that a message was sent as its class requires (MS-36 to MS-39).
func (b *Bridge) checkClass(c *request) *message.Error {
	name := c.m.From.Name()
	plain := c.m.Class == message.Confidential && slices.Contains(b.cfg.PlainConf, name)
	if c.m.Class.IsBoxed() && !c.packet.Boxed && !plain {
		return message.FailAt(message.CodeClassification, "cls", "messages of this class must be encrypted")
	}
	switch c.m.Class {
	case message.Secret:
		if c.m.From.Org != b.self.Org || b.cfg.Secret == nil {
			return message.FailAt(message.CodeClassification, "cls", "secrets are not accepted here")
		}
	case message.PII:
		if len(c.m.Tree.JSON()) > wire.MaxMessage {
			return errTooLarge() // the node could not accept it, so do not scan it
		}
		return c.m.PII.CheckCoverage(nil, c.now) // checks only the declared consent: nothing is scanned yet
	}
	return nil
}

// checkConsent scans a message for personal data and checks that its consent covers the data. The scan is slow, so this
// check comes after all others. A part of a stream is scanned later, when the stream has accepted the part.
func (c *request) checkConsent() *message.Error {
	if c.m.Class != message.PII || c.m.Op == message.OpStream {
		return nil
	}
	return c.m.PII.CheckCoverage(personal.Types(c.m.Content()), c.now)
}

// checkCapability checks that we offer the required capabilities, and that the owner granted personal data to the
// sender (MS-28, MS-35). It refuses the operation register, which is not offered here.
func (b *Bridge) checkCapability(c *request) *message.Error {
	for _, needed := range c.m.Cap {
		if !slices.Contains(b.capabilities, needed) {
			return message.FailAt(message.CodeCapability, "cap", "is not offered here")
		}
	}
	if c.m.Op == message.OpRegister {
		return message.Fail(message.CodeCapability)
	}
	if c.m.Class == message.PII && !c.peer.GrantedPII {
		e := message.FailAt(message.CodeCapability, "cls", "personal data is accepted only from peers to which the owner granted pii")
		e.Capability = string(message.PII)
		return e
	}
	return nil
}

// needsOwner reports whether the owner must approve a message. A tool call needs an approval unless moltspeak.tools
// allows the tool to the sender (MS-34). Of an unknown peer, everything but a public query needs one (MS-28).
func (c *request) needsOwner(tools []ToolInfo) bool {
	if t, ok := c.body.(message.Tool); ok {
		name := c.m.From.Name()
		return !slices.ContainsFunc(tools, func(i ToolInfo) bool { return i.Name == t.Tool && slices.Contains(i.Peers, name) })
	}
	isPublicQuery := c.m.Op == message.OpQuery && c.m.Class == message.Public
	return !c.isKnown() && !isPublicQuery
}

// handleSecret passes a secret to the configured handler, in memory, and stores only the digest of the message (MS-37).
func (b *Bridge) handleSecret(c *request, isRepeat bool) (answer, *message.Error) {
	switch {
	case c.standing != acl.Allowed:
		return answer{}, message.Fail(message.CodeCapability) // it would wait for the owner, and be stored until then
	case isRepeat:
		return answer{}, errReusedID()
	}
	if e := b.replays.store(c); e != nil {
		return answer{}, e
	}
	out, err := b.cfg.Secret(c.ctx, c.m.From.Name(), c.m.P)
	if err != nil {
		// The handler's own error may contain the secret.
		return answer{}, message.Fail(message.CodeTaskFailed).Because(errors.New("the handler of secrets failed"))
	}
	return answer{op: message.OpRespond, p: message.Respond{Status: "success", Data: out}.Value(), fromOwner: true}, nil
}

// dispatch carries out the operation of a message. Queries, tasks, tools and streams become messages for the node.
func (b *Bridge) dispatch(c *request) (answer, *message.Error) {
	var a answer
	var e *message.Error
	switch p := c.body.(type) {
	case message.Hello:
		if c.m.Op == message.OpHelloAck {
			return answer{}, nil // we send hello only to check a link, and that check reads the response itself
		}
		a, e = b.handleHello(c, p)
	case message.Verify:
		if c.m.Op == message.OpVerifyResponse {
			a, e = b.handshake.acceptProof(c, p.Challenge)
		} else {
			a, e = answerVerify(p, c.now)
		}
	case message.Ping:
		a = answer{op: message.OpPong, p: wire.Obj(wire.Field("nonce", p.Nonce), wire.TextField("status", "alive"), wire.Field("capabilities_active", wire.Texts(b.capabilities)))}
	case message.Discover:
		a, e = discover(c, p, b.cfg.Directories, b.quotas)
	case message.Consent:
		a, e = b.handleConsent(c, p)
	case message.Ack:
		return answer{}, nil
	case message.Respond:
		text := p.Data.GetStr("challenge")
		if !b.handshake.isWaiting(c.m.From.Name(), text) {
			return b.receiveReply(c)
		}
		// A peer that knows only the core operations answers a challenge with respond, not with verify_response (MS-25).
		a, e = b.handshake.acceptProof(c, text)
	case message.Fault:
		return b.receiveReply(c)
	case message.Query:
		return b.handleQuery(c, p)
	case message.Task:
		return b.handleTask(c, p)
	case message.Tool:
		return b.handleTool(c, p)
	case message.Stream:
		return b.handleStream(c, p)
	}
	if e != nil {
		return a, e
	}
	return a, b.replays.storeUnlessRepeat(c)
}

// refuse returns the response with a signed error. If an unverified message fails a check of its sender, key,
// signature or capabilities, the error has only the code.
func (b *Bridge) refuse(c *request, e *message.Error) Response {
	b.cfg.Logger.DebugContext(c.ctx, "moltspeak: refused", "peer", c.m.From.Name(), "code", e.Code, "field", e.Field, "cause", e.Unwrap())
	brief := !c.signed && (e.Code == message.CodeAuthFailed || e.Code == message.CodeSignature || e.Code == message.CodeCapability)
	r := b.reply(c, answer{op: message.OpError, p: e.Payload(brief), status: e.Status}).withDelay(e.Delay, e.Code)
	r.Forged = !c.signed && (e.Code == message.CodeAuthFailed || e.Code == message.CodeSignature)
	return r
}

// withDelay sets the delay of a response whose code means that the peer may try again later.
func (r Response) withDelay(d time.Duration, code message.Code) Response {
	if code == message.CodeRateLimit || code == message.CodeTimeout {
		r.Delay = max(d, time.Second)
	}
	return r
}
