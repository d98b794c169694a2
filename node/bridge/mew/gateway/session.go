package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// joinPatience is how long a connection without a bearer token may take to join (MEW-J1).
const joinPatience = 5 * time.Second

// clientKey is the context key of the client's address. The listener may know that address from a proxy.
type clientKey struct{}

// WithClient returns a context for a request of the client with this address.
func WithClient(ctx context.Context, client netip.Addr) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// bearer returns the token of a request, or "" if there is no Authorization header. ok is false if there is such a
// header, but no bearer token in it.
func bearer(r *http.Request) (token string, ok bool) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", true
	}
	scheme, token, _ := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}

func addressOf(r *http.Request) netip.Addr {
	if addr, ok := r.Context().Value(clientKey{}).(netip.Addr); ok {
		return addr
	}
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	return from.Addr()
}

// isNamedBy reports whether a client that asks for the space called name may get s (MEW-J3).
func (s *Space) isNamedBy(name string) bool {
	return name == "" || name == "default" || name == s.cfg.ID
}

// authenticate returns the member to which a token belongs, and the member's space. It fails if the client requested
// another space.
func (g *Gateway) authenticate(token, requested string) (*Space, *member, bool) {
	if token == "" {
		return nil, nil, false
	}
	rec := g.lookup(token)
	if rec == nil {
		return nil, nil, false
	}
	s := g.spaces[rec.Space]
	if s == nil || !s.isNamedBy(requested) {
		return nil, nil, false
	}
	s.mu.Lock()
	defer s.unlock()
	m := s.members.byName[rec.Name]
	if m == nil || !m.admits(credential.HashOf(token)) {
		return nil, nil, false
	}
	return s, m, true
}

// serveSocket accepts a connection (MEW-J1).
func (g *Gateway) serveSocket(w http.ResponseWriter, r *http.Request) {
	from := addressOf(r)
	token, ok := bearer(r)
	ses := &session{id: "ws-" + strings.ToLower(rand.Text()[:12])}
	requested := r.URL.Query().Get("space")
	if !ok || token != "" && !g.bindSession(ses, token, requested) { // a header, if there is one, must admit the client
		answerRefusal(w, g.chargeFailedJoin(from, requested, envelope.RefuseToken("Authentication failed")))
		return
	}
	conn, err := websocket.Accept(w, r, websocket.Options{ReadLimit: envelope.MaxEnvelope, Origins: g.cfg.Origins})
	if err != nil {
		return // answered
	}
	ses.conn = conn
	if g.conns.Enter(conn, maxSessions) != nil {
		conn.Abort()
		conn.Drain()
		return
	}
	if ses.m == nil { // without a bearer token, the first message must be a join
		go func() { g.serveSession(ses, g.awaitJoin(ses, requested, from)) }()
		return
	}
	g.serveSession(ses, g.enter(ses, ""))
}

// chargeFailedJoin counts a join or request without a valid token against the address of the client, and returns the
// refusal to send: r or, after too many, a rate limit. A client with a valid token is never limited, because it
// may share its address with others (MEW-Q4).
func (g *Gateway) chargeFailedJoin(from netip.Addr, space string, r *envelope.Refusal) *envelope.Refusal {
	busy, isBusy := errors.AsType[*credential.Busy](g.accounts.Fail(from, nil))
	if !isBusy {
		g.log.Info("no valid token", "client", rate.AddrKey(from), "space", envelope.ToPrintable(space, envelope.MaxName))
		return r
	}
	rateLimit := envelope.RefuseRate(busy.Wait)
	rateLimit.Close = r.Close
	return rateLimit
}

// serveSession reads the messages of a session, if it has joined, until the connection ends, and then removes the
// session. It does so in a new goroutine, whose stack is small: joining has made the caller's stack large, and most
// connections only wait.
func (g *Gateway) serveSession(ses *session, joined bool) {
	go func() {
		defer g.conns.Leave(ses.conn)
		defer ses.conn.Drain()
		if joined {
			g.readMessages(ses)
		}
	}()
}

// bindSession sets the space and the member of a session. It reports whether the token is valid for the space.
func (g *Gateway) bindSession(ses *session, token, space string) bool {
	s, m, ok := g.authenticate(token, space)
	if ok {
		ses.space, ses.m, ses.key = s, m, credential.HashOf(token)
	}
	return ok
}

// readMessages handles the messages of a session until its connection ends.
func (g *Gateway) readMessages(ses *session) {
	defer ses.space.leave(ses)
	for {
		typ, data, err := ses.conn.Read()
		if err != nil {
			g.log.Debug("a connection ended", "space", ses.space.cfg.ID, "participant", ses.m.name, "why", err)
			return
		}
		if id, ok := frameStreamID(data); ok {
			ses.space.handleFrame(ses, id, typ, data)
			continue
		}
		if !g.handleMessage(ses, data) {
			return
		}
	}
}

// enter adds a session to its space, under the requested id or, if that is empty, under the member's name. If the space
// refuses, enter closes the connection and returns false.
func (g *Gateway) enter(ses *session, requestedID string) bool {
	if fault := ses.space.join(ses, requestedID); fault != nil {
		g.log.Info("join refused", "space", ses.space.cfg.ID, "participant", ses.m.name, "reason", fault.Payload.GetStr("error"))
		closeWith(ses.conn, fault)
		return false
	}
	return true
}

// closeWith sends a refusal and closes the connection.
func closeWith(conn *websocket.Conn, fault *envelope.Refusal) {
	o := envelope.Outgoing{From: fault.From, Kind: envelope.KindError, Payload: fault.Payload}
	_ = conn.Send(websocket.Text(o.Append(nil, envelope.NewID(), envelope.FormatTime(time.Now())))) // the client may be gone
	conn.Close(fault.Close, fault.Payload.GetStr("error"))
}

// awaitJoin waits for the first message, which must be a join with a token, and enters the space. requested is the
// space in the URL. It returns false if the connection must end.
func (g *Gateway) awaitJoin(ses *session, requested string, from netip.Addr) bool {
	abort := time.AfterFunc(joinPatience, func() { closeWith(ses.conn, envelope.RefuseToken("No join came")) })
	_, data, err := ses.conn.Read()
	if !abort.Stop() {
		g.chargeFailedJoin(from, requested, envelope.RefuseToken("No join came")) // counts like a wrong token
		return false
	}
	if err != nil {
		return false
	}
	j, ok := parseJoin(data)
	if !ok || !g.bindSession(ses, j.token, j.space) || !ses.space.isNamedBy(requested) {
		closeWith(ses.conn, g.chargeFailedJoin(from, cmp.Or(j.space, requested), envelope.RefuseToken("Authentication failed")))
		return false
	}
	return g.enter(ses, j.id)
}

// handleMessage handles a message of a participant. It returns false if the connection must end.
func (g *Gateway) handleMessage(ses *session, data []byte) bool {
	e, fault := envelope.Parse(data)
	if j, ok := readJoin(e.Tree); ok {
		if !g.isSameJoin(ses, j) { // MEW-J2
			closeWith(ses.conn, envelope.RefuseToken("The join is not for this connection"))
			return false
		}
		ses.space.rejoin(ses)
		return true
	}
	s := ses.space
	s.mu.Lock()
	defer s.unlock()
	if ses.m.session != ses {
		return true // the session was replaced or kicked, and is being closed
	}
	_, _ = s.handle(ses.m, e, fault, "websocket") // the sender gets a refusal as an envelope
	return true
}

// isSameJoin reports whether a repeated join names the same participant and space.
func (g *Gateway) isSameJoin(ses *session, j joinRequest) bool {
	if j.token != "" {
		if rec := g.lookup(j.token); rec == nil || rec.Space != ses.space.cfg.ID || rec.Name != ses.m.name {
			return false
		}
	}
	return ses.space.isNamedBy(j.space)
}

// joinRequest holds the fields of a join; see readJoin for the forms in which a client may send it.
type joinRequest struct {
	space, token string
	id           string // the requested id in the space, if any
}

func parseJoin(data []byte) (joinRequest, bool) {
	if len(data) > maxJoin {
		return joinRequest{}, false
	}
	v, err := wire.ParseForeign(data, envelope.MaxDepth, envelope.MaxValues)
	if err != nil {
		return joinRequest{}, false
	}
	return readJoin(v)
}

const maxJoin = 64 << 10 // bytes

// readJoin reads a join in one of two forms that clients send: an object of type join with its fields at the top, or a
// system/join envelope with the fields in its payload.
func readJoin(v wire.Value) (joinRequest, bool) {
	if v.GetStr("type") == "join" {
		return joinRequest{v.GetStr("space"), v.GetStr("token"), v.GetStr("participantId")}, true
	}
	if v.GetStr("kind") != envelope.KindSystemJoin {
		return joinRequest{}, false
	}
	p, _ := v.Get("payload")
	return joinRequest{p.GetStr("space"), p.GetStr("token"), p.GetStr("participantId")}, true
}
