package moltspeak

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// connection is one WebSocket. It is bound to a sender by a fresh hello, which nobody can have recorded, or by the answer
// to a challenge that was sent over this very connection. Until then nothing is pushed to it (MS-2).
type connection struct {
	b     *Bridge
	conn  *websocket.Conn
	bound *message.Agent

	sources []rate.Source // of the client
	// greeted is set by a valid hello, which must come first.
	greeted bool

	// asked is our challenge to the sender of a hello that does not bind, in the verify with that id.
	asked  challenge
	verify string
}

// opening lists what is taken before the connection is bound, after a hello. A respond is one way to answer our verify.
var opening = []message.Op{message.OpHello, message.OpHelloAck, message.OpVerify, message.OpVerifyResponse, message.OpPing, message.OpPong, message.OpRespond}

// serve answers frames until the connection ends. charge is asked about each frame after the first, for which the request
// paid. tally sees every answer.
func (c *connection) serve(ctx context.Context, charge func() *message.Error, tally func(Reply)) {
	for first := true; ; first = false {
		kind, raw, err := c.conn.Read()
		if err != nil {
			return
		}
		if kind != websocket.TextType {
			c.conn.Close(websocket.CodeProtocol, "text frames only")
			continue // a closed connection ends at the next read
		}
		if !first {
			if e := charge(); e != nil {
				c.end(ctx, e, "rate limit")
				continue
			}
		}
		if c.bound != nil {
			r := c.b.Receive(ctx, raw, c.sources, c.bound)
			tally(r)
			c.send(r.Body)
			continue
		}
		r := c.open(ctx, raw)
		tally(r)
		if r.Status >= http.StatusBadRequest {
			c.conn.Close(websocket.CodeProtocol, "the first message must be a valid hello")
		}
	}
}

func (c *connection) send(body []byte) {
	if len(body) > len(noAnswer) {
		_ = c.conn.Send(websocket.Text(body))
	}
}

// end refuses what came and closes the connection.
func (c *connection) end(ctx context.Context, e *message.Error, reason string) {
	c.send(c.b.refuse(&exchange{ctx: ctx, now: time.Now()}, e).Body)
	c.conn.Close(websocket.CodeTryLater, reason)
}

// open answers a frame that came before the connection is bound, and binds it if the frame is what does that.
func (c *connection) open(ctx context.Context, raw []byte) Reply {
	x := &exchange{ctx: ctx, now: time.Now(), size: len(raw), sources: c.sources, opens: true}
	r, proves := c.answer(x, raw)
	switch {
	case r.Status >= http.StatusBadRequest || r.Sender.Agent == "":
	case proves, x.m.Op == message.OpHello && r.Fresh:
		if !c.b.sockets.bind(c.conn, r.Sender.Name(), r.Known) {
			c.end(ctx, message.Fail(message.CodeRateLimit), "too many streams")
			return r
		}
		c.bound = &r.Sender
	case x.m.Op == message.OpHello:
		c.greeted = true
		c.send(r.Body)
		c.send(c.challenge(x))
		return r
	}
	c.send(r.Body)
	return r
}

// answer answers a frame. proves reports whether it is the answer to our challenge.
func (c *connection) answer(x *exchange, raw []byte) (r Reply, proves bool) {
	b := c.b
	var e *message.Error
	if x.packet, e = message.ReadPacket(raw, b.cfg.Box); e != nil {
		return b.refuse(x, e), false
	}
	op, re := message.Op(x.packet.Tree.GetStr("op")), x.packet.Tree.GetStr("re")
	answers := c.verify != "" && re == c.verify
	if op != message.OpHello && !c.greeted || !slices.Contains(opening, op) || op == message.OpRespond && !answers {
		return b.refuse(x, message.FailAt(message.CodeSchema, "op", "must be hello until the connection is bound")), false
	}
	if !answers || op != message.OpVerifyResponse && op != message.OpRespond {
		return b.receive(x), false
	}
	a, e := c.proven(x)
	if e != nil {
		return b.refuse(x, e), false
	}
	return b.reply(x, a), true
}

// challenge asks the sender of a hello for proof on this connection, in the way the hello travelled.
func (c *connection) challenge(x *exchange) []byte {
	b := c.b
	c.verify = uuid(random32())
	c.asked = challenge{text: random32(), key: x.peer.Key, hello: x.salt(), expires: x.now.Add(challengeLife), known: x.known(), sources: x.sources}
	class := message.Internal
	if !x.peer.takes(class) {
		class = message.Public
	}
	tree, err := message.Sign(message.Draft{
		ID: c.verify, Op: message.OpVerify, Time: x.now, From: b.self, To: message.Agent{Agent: x.m.From.Agent, Org: x.m.From.Org}, Class: class,
		P: wire.Obj(wire.TextField("challenge", c.asked.text), wire.Field("timestamp", wire.Int(x.now.UnixMilli()))),
	}.Tree(), b.cfg.Key)
	if err != nil {
		b.cfg.Logger.ErrorContext(x.ctx, "moltspeak: sign a challenge", "err", err)
		return nil
	}
	return b.pack(x, tree.JSON())
}

// proven checks the answer to our challenge, which may be tried once, and opens the session that it is good for.
func (c *connection) proven(x *exchange) (answer, *message.Error) {
	asked := c.asked
	c.asked, c.verify = challenge{}, ""
	if e := c.b.authentic(x); e != nil {
		return answer{}, e
	}
	text := ""
	switch p := x.body.(type) {
	case message.Verify:
		text = p.Challenge
	case message.Respond:
		text = p.Data.GetStr("challenge")
	}
	if !asked.isAnsweredBy(x.peer.Key, text, x.now) {
		return answer{}, message.Fail(message.CodeAuthFailed)
	}
	s, ok := c.b.handshake.establish(x.m.From.Name(), asked, c.b.sessionKey(x.peer, asked.hello), x.now)
	if !ok {
		return answer{}, nil // bound without a session: there is no room for another one
	}
	a := established(s)
	a.status = http.StatusOK
	return a, nil
}
