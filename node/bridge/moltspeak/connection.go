package moltspeak

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
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

// helloTime is how long a WebSocket may stay open before it is bound to a peer.
const helloTime = 10 * time.Second

// stopPatience is how long a bridge that stops waits until its WebSockets have closed.
const stopPatience = 5 * time.Second

// socket is an open WebSocket.
type socket struct {
	conn  *websocket.Conn
	peer  string      // the identity of the peer to which it is bound; "" if it is not bound
	known bool        // the peer is a known peer, not a stranger
	since time.Time   // when it was opened or, if it is bound, when it was bound
	hello *time.Timer // closes the connection if it is not bound in time

	sources []rate.Source // the client's address and networks, for rate limits
}

// sockets holds the open WebSockets.
type sockets struct {
	group websocket.Group // also those that are closing

	mu  sync.Mutex
	all map[*websocket.Conn]*socket
}

func newSockets() *sockets { return &sockets{all: make(map[*websocket.Conn]*socket)} }

// add registers a connection, which is not bound yet. If too many connections are not bound, it closes the oldest one
// of the source that has most of them. While the bridge stops, add returns false.
func (s *sockets) add(c *websocket.Conn, sources []rate.Source) bool {
	if s.group.Enter(c, 2*maxSockets) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := func(o *socket) bool { return o.peer == "" }
	if s.count(waiting) >= unboundSockets {
		newestFirst := func(a, b *socket) int { return b.since.Compare(a.since) }
		table := rate.FairTableOf(s.all, newestFirst, func(o *socket) ([]rate.Source, bool) { return o.sources, waiting(o) })
		displaced, ok := table.FindDisplaceable(sources)
		if !ok {
			displaced, _ = table.FindHeaviest()
		}
		displaced.Abort()
		delete(s.all, displaced)
	}
	hello := time.AfterFunc(helloTime, func() { c.Close(websocket.CodeProtocol, "the WebSocket was not bound to a sender in time") })
	s.all[c] = &socket{conn: c, sources: sources, since: time.Now(), hello: hello}
	return true
}

// bind binds c to a peer. It returns false if the peer has too many connections, or if known peers together have too
// many. If strangers together have too many, bind closes a connection of another stranger whose source has more
// (AM-42), or returns false if it finds none.
func (s *sockets) bind(c *websocket.Conn, peer string, known bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sock := s.all[c]
	if sock == nil {
		return false // c was closed to make room
	}
	sock.hello.Stop()
	isSimilar := func(o *socket) bool { return o.peer != "" && o.known == known } // of known peers, or of strangers
	limit := maxSockets - strangersSockets - unboundSockets
	if !known {
		limit = strangersSockets
	}
	if s.count(func(o *socket) bool { return o.peer == peer }) >= socketsPerPeer {
		return false
	}
	if s.count(isSimilar) >= limit {
		oldestFirst := func(a, b *socket) int { return a.since.Compare(b.since) }
		table := rate.FairTableOf(s.all, oldestFirst, func(o *socket) ([]rate.Source, bool) { return o.sources, isSimilar(o) })
		displaced, ok := table.FindDisplaceable(sock.sources)
		if known || !ok {
			return false
		}
		displaced.Close(websocket.CodeTryLater, "too many WebSockets")
		delete(s.all, displaced)
	}
	sock.peer, sock.known, sock.since = peer, known, time.Now()
	return true
}

func (s *sockets) count(which func(*socket) bool) int { return count(maps.Values(s.all), which) }

func (s *sockets) remove(c *websocket.Conn) {
	s.mu.Lock()
	if sock := s.all[c]; sock != nil {
		sock.hello.Stop()
		delete(s.all, c)
	}
	s.mu.Unlock()
	s.group.Leave(c)
}

// push queues raw on the newest connection of the peer with this identity. It returns false if the peer has no
// connection, or if the newest one is closing or has a full queue. The message may still get lost, so the caller also
// stores it if it can.
func (s *sockets) push(peer string, raw []byte) bool {
	s.mu.Lock()
	var newest *socket
	for _, o := range s.all {
		if o.peer == peer && (newest == nil || o.since.After(newest.since)) {
			newest = o
		}
	}
	s.mu.Unlock()
	return newest != nil && newest.conn.Send(websocket.Text(raw)) == nil
}
