package relay

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// maxRegister bounds the body of a registration.
const maxRegister = 4 << 10

// Mount adds what clients call: /register, /arc and /stats, on the one listener (AR-35).
func (r *Relay) Mount(e *echo.Echo) {
	var open []echo.MiddlewareFunc
	if r.cfg.AnyOrigin {
		open = append(open, httpapi.AnyOrigin)
		e.OPTIONS("/register", preflight, open...)
	}
	e.POST("/register", r.postRegister, open...)
	e.GET("/arc", r.connect)
	if r.cfg.Stats != StatsOff {
		e.GET("/stats", r.getStats, open...)
		if r.cfg.AnyOrigin {
			e.OPTIONS("/stats", preflight, open...)
		}
	}
}

// preflight answers a browser that asks first (AR-34).
func preflight(c echo.Context) error {
	h := c.Response().Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
	return c.NoContent(http.StatusNoContent)
}

func faultOf(c echo.Context, status int, code, message string) error {
	return httpapi.JSON(c, status, frame.Fault{Error: code, Message: message})
}

// limited answers a request that came too early.
func limited(c echo.Context, wait time.Duration) error {
	c.Response().Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
	return faultOf(c, http.StatusTooManyRequests, frame.CodeRate, "too many requests; try again later")
}

func (r *Relay) postRegister(c echo.Context) error {
	httpapi.Private(c)
	from, now := httpapi.ClientAddr(c), time.Now()
	if wait, _ := r.registrations.Take(from, now); wait > 0 {
		return limited(c, wait)
	}
	err := r.answerRegistration(c)
	if c.Response().Status != http.StatusOK {
		r.registrations.Return(from, now)
	}
	return err
}

func (r *Relay) answerRegistration(c echo.Context) error {
	if r.cfg.Registration == credential.Closed {
		return faultOf(c, http.StatusForbidden, "registration_closed", "the owner of this relay gives out the tokens")
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, maxRegister))
	if err != nil {
		return faultOf(c, http.StatusRequestEntityTooLarge, "invalid_json", "the body is too large")
	}
	id, ok := readRegistration(body)
	if !ok {
		return faultOf(c, http.StatusBadRequest, "invalid_json", "the body must be a JSON object")
	}
	if _, isText := id.Str(); !isText && !id.IsNull() {
		return faultOf(c, http.StatusBadRequest, "invalid_agent_id", "agent_id must be a string")
	}
	var more []store.Change
	if r.cfg.Registration == credential.Invite {
		code := c.Request().Header.Get(wire.HeaderInvite)
		_, change, err := r.invites().Redeem(c.Request().Context(), code, "", time.Now())
		if code == "" || err != nil {
			if wait := r.failed.Fail(httpapi.ClientAddr(c), time.Now()); wait > 0 {
				return limited(c, wait)
			}
			return faultOf(c, http.StatusForbidden, "registration_closed", "registration needs an invite code of the owner")
		}
		more = append(more, change)
	}
	name, _ := id.Str()
	return r.registered(c, name, more...)
}

// registered registers and answers.
func (r *Relay) registered(c echo.Context, name string, more ...store.Change) error {
	got, token, err := r.agents.register(c.Request().Context(), registration{ID: name}, more...)
	switch {
	case errors.Is(err, errBadID):
		return faultOf(c, http.StatusBadRequest, "invalid_agent_id", "an agent id has 3 to 64 of a-z 0-9 -, and begins and ends with a letter or digit")
	case errors.Is(err, errTaken):
		return faultOf(c, http.StatusConflict, "agent_id_taken", "the agent id is taken")
	case errors.Is(err, store.ErrConflict):
		return faultOf(c, http.StatusForbidden, "registration_closed", "the invite code was used")
	case errors.Is(err, errFull):
		return faultOf(c, http.StatusServiceUnavailable, "registry_full", "the relay takes no more agents")
	case err != nil:
		r.log.Error("register an agent", "err", err)
		return faultOf(c, http.StatusServiceUnavailable, frame.CodeUnavailable, "the relay cannot take the request now")
	}
	return httpapi.JSON(c, http.StatusOK, frame.Credentials{AgentID: got, Token: token})
}

// readRegistration returns the id that is asked for: null where there is none (AR-1).
func readRegistration(body []byte) (wire.Value, bool) {
	if strings.TrimSpace(string(body)) == "" {
		return wire.Value{}, true
	}
	v, err := wire.ParseForeign(body, frame.MaxDepth, frame.MaxValues)
	if err != nil || v.Kind() != wire.Object {
		return wire.Value{}, false
	}
	id, _ := v.Get("agent_id")
	return id, true
}

// connect takes an agent in (AR-6 to AR-8). A right token always passes, because an address may be shared.
func (r *Relay) connect(c echo.Context) error {
	req := c.Request()
	if !websocket.Wanted(req) {
		c.Response().Header().Set("Upgrade", "websocket")
		return faultOf(c, http.StatusUpgradeRequired, "upgrade_required", "this is a WebSocket")
	}
	a, ok := r.agents.lookup(tokenOf(req))
	if !ok {
		if wait := r.failed.Fail(httpapi.ClientAddr(c), time.Now()); wait > 0 {
			return limited(c, wait)
		}
		return faultOf(c, http.StatusUnauthorized, "invalid_token", "the token is missing or wrong")
	}
	conn, err := websocket.Accept(c.Response(), req, websocket.Options{
		ReadLimit: frame.ReadLimit, QueueFrames: queueFrames, QueueBytes: queueBytes, Ping: frame.PingEvery, Silence: frame.GoneAfter, Origins: r.cfg.Origins,
	})
	if err != nil {
		return nil // answered
	}
	s := &session{id: a.ID, token: a.Token, trusted: a.Trusted, conn: conn}
	if refused := r.conns.enter(s, r.agents, r.welcome(a.ID)); refused != nil {
		conn.Close(refused.Code, refused.Reason)
		conn.Drain() // at most two seconds: this goroutine is the connection's
		return nil
	}
	r.log.Debug("an agent connected", slog.String("agent", a.ID))
	go r.read(s)
	return nil
}

// tokenOf returns the token of a request: of the header, or of the query, which is the only form that the reference's
// clients know (AR-7). The query is taken off the request, so that nothing behind us can log it.
func tokenOf(req *http.Request) string {
	query := req.URL.Query().Get("token")
	req.URL.RawQuery = ""
	req.RequestURI = req.URL.Path
	if token, ok := httpapi.Bearer(req); ok {
		return token
	}
	return query
}
