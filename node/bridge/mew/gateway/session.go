package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// joinPatience is how long a connection without a bearer may take to join (MEW-J1).
const joinPatience = 5 * time.Second

// clientKey is where a request carries the address of its client, which a proxy may have told the listener.
type clientKey struct{}

// WithClient returns a context for a request of the client with this address.
func WithClient(ctx context.Context, client netip.Addr) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// bearer returns the token of a request. ok is false where there is an Authorization header without one.
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

// authenticate finds whom a token admits to the space that was asked for: the token's own, also where none or
// "default" was asked for (MEW-J3).
func (g *Gateway) authenticate(token, space string) (*Space, *member, bool) {
	if token == "" {
		return nil, nil, false
	}
	owner, ok := g.tokens.lookup(token)
	s := g.spaces[owner.space]
	if !ok || s == nil || space != "" && space != "default" && space != s.cfg.ID {
		return nil, nil, false
	}
	s.mu.Lock()
	defer s.unlock()
	m := s.members.byName[owner.name]
	if m == nil || m.lasting.Barred || slices.Contains(m.lasting.Dead, credential.HashOf(token).String()) {
		return nil, nil, false
	}
	return s, m, true
}

// serveSocket takes a connection in (MEW-J1).
func (g *Gateway) serveSocket(w http.ResponseWriter, r *http.Request) {
	from := addressOf(r)
	token, ok := bearer(r)
	ses := &session{id: "ws-" + strings.ToLower(rand.Text()[:12])}
	asked := r.URL.Query().Get("space")
	if !ok || token != "" && !g.admit(ses, token, asked) {
		answerRefusal(w, g.failedJoin(from, asked, envelope.RefuseUnauthorized("Authentication failed")))
		return
	}
	conn, err := websocket.Accept(w, r, websocket.Options{ReadLimit: envelope.MaxEnvelope, Origins: g.cfg.Origins})
	if err != nil {
		return // answered
	}
	ses.conn = conn
	if g.begin(ses) != nil {
		conn.Abort()
		conn.Drain()
		return
	}
	if ses.m == nil {
		go func() { g.goOn(ses, g.awaitJoin(ses, asked, from)) }()
		return
	}
	g.goOn(ses, g.enter(ses, ""))
}

// failedJoin charges the address of a client that showed no valid token, and returns the refusal to answer with: past
// ten in a minute it is told to wait. A valid token passes whatever its address did before, because an address may be
// shared (MEW-Q4).
func (g *Gateway) failedJoin(from netip.Addr, space string, r *envelope.Refusal) *envelope.Refusal {
	wait := g.failed.Fail(from, time.Now())
	if wait == 0 {
		g.log.Info("no valid token", "client", rate.AddrKey(from), "space", envelope.ToPrintable(space, envelope.MaxName))
		return r
	}
	limited := envelope.RefuseRate(wait)
	limited.Close = r.Close
	return limited
}

// goOn goes on with a connection in a goroutine of its own: joining takes a deep stack, and waiting, which is what
// most connections do, should keep a small one.
func (g *Gateway) goOn(ses *session, in bool) {
	go func() {
		defer g.end(ses)
		defer ses.conn.Drain()
		if in {
			g.talk(ses)
		}
	}()
}

// admit puts whom a token admits into the session.
func (g *Gateway) admit(ses *session, token, space string) bool {
	s, m, ok := g.authenticate(token, space)
	if ok {
		ses.space, ses.m, ses.tokenHash = s, m, credential.HashOf(token).String()
	}
	return ok
}

// talk takes what a participant sends until its connection ends.
func (g *Gateway) talk(ses *session) {
	defer ses.space.leave(ses)
	for {
		typ, data, err := ses.conn.Read()
		if err != nil {
			g.log.Debug("a connection ended", "space", ses.space.cfg.ID, "participant", ses.m.name, "why", err)
			return
		}
		if id, ok := splitFrame(data); ok {
			ses.space.frame(ses.m, id, typ, data)
			continue
		}
		if !g.hear(ses, data) {
			return
		}
	}
}

// enter joins the space; a refusal closes the connection.
func (g *Gateway) enter(ses *session, runtime string) bool {
	if fault := ses.space.join(ses, runtime); fault != nil {
		g.log.Info("join refused", "space", ses.space.cfg.ID, "participant", ses.m.name, "reason", fault.Payload.GetStr("error"))
		hangUpWith(ses.conn, fault)
		return false
	}
	return true
}

// hangUpWith says why, and closes.
func hangUpWith(conn *websocket.Conn, fault *envelope.Refusal) {
	o := envelope.Outgoing{From: fault.From, Kind: envelope.KindError, Payload: fault.Payload}
	_ = conn.Send(websocket.Text(o.Append(nil, envelope.NewID(), envelope.FormatTime(time.Now())))) // one that is gone needs no reason
	conn.Close(fault.Close, fault.Payload.GetStr("error"))
}

// awaitJoin waits for the first message, which must be a join with a token.
func (g *Gateway) awaitJoin(ses *session, asked string, from netip.Addr) bool {
	late := time.AfterFunc(joinPatience, func() { hangUpWith(ses.conn, envelope.RefuseUnauthorized("No join came")) })
	_, data, err := ses.conn.Read()
	if !late.Stop() {
		g.failedJoin(from, asked, envelope.RefuseUnauthorized("No join came")) // it holds a connection for nothing
		return false
	}
	if err != nil {
		return false
	}
	j, ok := parseJoin(data)
	space := cmp.Or(j.space, asked)
	if ok && asked != "" && asked != "default" && j.space != "" && j.space != "default" && asked != j.space {
		ok = false // it asks for two
	}
	if !ok || !g.admit(ses, j.token, space) {
		hangUpWith(ses.conn, g.failedJoin(from, space, envelope.RefuseUnauthorized("Authentication failed")))
		return false
	}
	return g.enter(ses, j.id)
}

// hear takes a message of a participant. It returns false where the connection is over.
func (g *Gateway) hear(ses *session, data []byte) bool {
	e, fault := envelope.Parse(data)
	if j, ok := joinOf(e.Tree); ok {
		if !g.sameJoin(ses, j) { // MEW-J2
			hangUpWith(ses.conn, envelope.RefuseUnauthorized("The join is not for this connection"))
			return false
		}
		ses.space.rejoin(ses)
		return true
	}
	s := ses.space
	s.mu.Lock()
	defer s.unlock()
	if ses.m.session != ses {
		return true // replaced or put out: the close is on its way
	}
	_, fault = s.handle(ses.m, e, fault, "websocket")
	return fault == nil || fault.Close == 0
}

// sameJoin says whether a repeated join names the same participant and space.
func (g *Gateway) sameJoin(ses *session, j joinRequest) bool {
	if j.space != "" && j.space != "default" && j.space != ses.space.cfg.ID {
		return false
	}
	if j.token == "" {
		return true
	}
	owner, ok := g.tokens.lookup(j.token)
	return ok && owner == tokenOwner{ses.space.cfg.ID, ses.m.name}
}

// joinRequest is what the four shapes of a join say.
type joinRequest struct {
	space, token string
	id           string // the runtime id asked for; empty: none
}

func parseJoin(data []byte) (joinRequest, bool) {
	if len(data) > maxJoin {
		return joinRequest{}, false
	}
	v, err := wire.ParseForeign(data, envelope.MaxDepth, envelope.MaxValues)
	if err != nil {
		return joinRequest{}, false
	}
	return joinOf(v)
}

const maxJoin = 64 << 10

// joinOf reads shape (a), whose fields stand at the top, and (b) to (d), which are envelopes (section 1).
func joinOf(v wire.Value) (joinRequest, bool) {
	if v.GetStr("type") == "join" {
		return joinRequest{v.GetStr("space"), v.GetStr("token"), v.GetStr("participantId")}, true
	}
	if v.GetStr("kind") != envelope.KindSystemJoin {
		return joinRequest{}, false
	}
	p, _ := v.Get("payload")
	return joinRequest{p.GetStr("space"), p.GetStr("token"), p.GetStr("participantId")}, true
}
