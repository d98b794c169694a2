package moltspeak

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// connection is one WebSocket. Two kinds of messages bind it to their sender: a hello that cannot be a replayed
// recording, and the answer to a challenge that we sent over this connection. Before it is bound, the bridge pushes
// nothing to it (MS-2).
type connection struct {
	b       *Bridge
	conn    *websocket.Conn
	boundTo *message.Agent

	sources []rate.Source // the client's address and networks, for rate limits
	// greeted is set by a valid hello, which must be the first message.
	greeted bool

	// sentChallenge is our challenge to the sender of a hello that did not bind the connection. verifyID is the id of
	// the verify message that carries it.
	sentChallenge challenge
	verifyID      string
}

// opsBeforeBinding are the operations that are accepted before the connection is bound. A respond is among them because
// it can answer our verify.
var opsBeforeBinding = []message.Op{message.OpHello, message.OpHelloAck, message.OpVerify, message.OpVerifyResponse, message.OpPing, message.OpPong, message.OpRespond}

// serve answers frames until the connection ends. It calls charge for each frame except the first, which the HTTP
// request has paid for. It calls onReply with the response to each message that it handles.
func (c *connection) serve(ctx context.Context, charge func() *message.Error, onReply func(Response)) {
	for first := true; ; first = false {
		kind, raw, err := c.conn.Read()
		if err != nil {
			return
		}
		if kind != websocket.TextType {
			c.conn.Close(websocket.CodeProtocol, "text frames only")
			continue // the next Read ends with the close
		}
		if !first {
			if e := charge(); e != nil {
				c.end(ctx, e, "rate limit")
				continue
			}
		}
		if c.boundTo != nil {
			r := c.b.Receive(ctx, raw, c.sources, c.boundTo)
			onReply(r)
			c.send(r.Body)
			continue
		}
		r := c.handleUnbound(ctx, raw)
		onReply(r)
		if r.Status >= http.StatusBadRequest {
			reason := "the first message must be a valid hello"
			if c.greeted {
				reason = "a message was refused before the connection was bound to its sender"
			}
			c.conn.Close(websocket.CodeProtocol, reason)
		}
	}
}

// send sends the body of a response, unless it is noAnswer.
func (c *connection) send(body []byte) {
	if !bytes.Equal(body, noAnswer) {
		_ = c.conn.Send(websocket.Text(body))
	}
}

// end sends a refusal and closes the connection.
func (c *connection) end(ctx context.Context, e *message.Error, reason string) {
	c.send(c.b.refuse(&request{ctx: ctx, now: time.Now()}, e).Body)
	c.conn.Close(websocket.CodeTryLater, reason)
}

// handleUnbound answers a frame on a connection that is not bound yet, and binds the connection if the frame proves
// who the sender is.
func (c *connection) handleUnbound(ctx context.Context, raw []byte) Response {
	x := &request{ctx: ctx, now: time.Now(), sources: c.sources, unbound: true}
	r, proves := c.answer(x, raw)
	switch {
	case r.Status >= http.StatusBadRequest || r.Sender.Agent == "": // refused or unverified: bind nothing
	case proves, x.m.Op == message.OpHello && r.Fresh: // not a replayed recording
		if !c.b.sockets.bind(c.conn, x.peer.identity(), r.Known) {
			c.end(ctx, message.Fail(message.CodeRateLimit), "too many WebSockets")
			return r
		}
		c.boundTo = &r.Sender
	case x.m.Op == message.OpHello:
		c.greeted = true
		c.send(r.Body)
		c.send(c.challenge(x))
		return r
	}
	c.send(r.Body)
	return r
}

// answer answers a frame. proves reports whether the frame is the right answer to our challenge.
func (c *connection) answer(x *request, raw []byte) (r Response, proves bool) {
	b := c.b
	var e *message.Error
	if x.packet, e = message.ReadPacket(raw, b.cfg.Box); e != nil {
		return b.refuse(x, e), false
	}
	op, re := message.Op(x.packet.Tree.GetStr("op")), x.packet.Tree.GetStr("re")
	answersVerify := c.verifyID != "" && re == c.verifyID
	needsHello := op != message.OpHello && !c.greeted
	if needsHello || !slices.Contains(opsBeforeBinding, op) || op == message.OpRespond && !answersVerify {
		return b.refuse(x, message.FailAt(message.CodeSchema, "op", "must be hello until the connection is bound")), false
	}
	if !answersVerify || op != message.OpVerifyResponse && op != message.OpRespond {
		return b.receive(x), false
	}
	a, e := c.acceptProof(x)
	if e != nil {
		return b.refuse(x, e), false
	}
	return b.reply(x, a), true
}

// challenge returns a challenge for the sender of a hello, wrapped in the same way as the hello.
func (c *connection) challenge(x *request) []byte {
	c.sentChallenge = challenge{text: random32(), key: x.peer.Key, expires: x.now.Add(challengeLife)}
	class := message.Internal
	if !x.peer.accepts(class) {
		class = message.Public
	}
	d := newVerify(c.sentChallenge.text, x.m.From, class, x.now)
	c.verifyID = d.ID
	return c.b.pack(x, c.b.signTree(d).JSON())
}

// acceptProof checks the answer to our challenge. A challenge permits only one attempt.
func (c *connection) acceptProof(x *request) (answer, *message.Error) {
	sent := c.sentChallenge
	c.sentChallenge, c.verifyID = challenge{}, ""
	if e := c.b.authenticate(x); e != nil {
		return answer{}, e
	}
	if !sent.isAnsweredBy(x.peer.Key, challengeIn(x.m, x.body), x.now) {
		return answer{}, message.Fail(message.CodeAuthFailed)
	}
	return sessionAnswer(x.now), nil
}
