package relay

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
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

// maxRegister bounds the body of a registration, in bytes.
const maxRegister = 4 << 10

// Mount adds the routes that clients call, behind guards: /register, /arc and /stats. They share the node's one listener
// (AR-35).
func (r *Relay) Mount(e *echo.Echo, guards ...echo.MiddlewareFunc) {
	cors := slices.Clip(guards)
	if r.cfg.AnyOrigin {
		cors = append(cors, httpapi.AnyOrigin)
		e.OPTIONS("/register", preflight, cors...)
	}
	e.POST("/register", r.postRegister, cors...)
	e.GET("/arc", r.connect, guards...)
	if r.cfg.Stats != StatsOff {
		e.GET("/stats", r.getStats, cors...)
		if r.cfg.AnyOrigin {
			e.OPTIONS("/stats", preflight, cors...)
		}
	}
}

// preflight answers the CORS preflight request of a browser (AR-34).
func preflight(c echo.Context) error {
	h := c.Response().Header()
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, "+wire.HeaderInvite)
	return c.NoContent(http.StatusNoContent)
}

func answerFault(c echo.Context, status int, code, message string) error {
	return httpapi.JSON(c, status, frame.Fault{Error: code, Message: message})
}

// answerRateLimit answers a request that came too early. wait is the time until the next one may come.
func answerRateLimit(c echo.Context, wait time.Duration) error {
	c.Response().Header().Set("Retry-After", strconv.FormatInt(wire.CeilSeconds(wait), 10))
	return answerFault(c, http.StatusTooManyRequests, frame.CodeRate, "too many requests; try again later")
}

// postRegister serves POST /register. Only successful registrations count toward the limits.
func (r *Relay) postRegister(c echo.Context) error {
	httpapi.Private(c)
	from, now := httpapi.ClientAddr(c), time.Now()
	if wait, _ := r.registrations.Take(from, now); wait > 0 {
		return answerRateLimit(c, wait)
	}
	err := r.answerRegistration(c)
	if c.Response().Status != http.StatusOK {
		r.registrations.Return(from, now)
	}
	return err
}

func (r *Relay) answerRegistration(c echo.Context) error {
	if r.cfg.Registration == credential.Closed {
		return answerFault(c, http.StatusForbidden, "registration_closed", "the owner of this relay hands out the tokens; ask the owner for one")
	}
	body, err := httpapi.ReadBody(c.Response(), c.Request(), maxRegister)
	if errors.Is(err, wire.ErrTooLarge) {
		return answerFault(c, http.StatusRequestEntityTooLarge, "invalid_json", "the body is too large")
	} else if err != nil {
		return answerFault(c, http.StatusBadRequest, "invalid_json", "the body cannot be read")
	}
	id, ok := readRegistration(body)
	if !ok {
		return answerFault(c, http.StatusBadRequest, "invalid_json", "the body must be a JSON object")
	}
	if _, isText := id.Str(); !isText && !id.IsNull() {
		return answerFault(c, http.StatusBadRequest, "invalid_agent_id", "agent_id must be a string")
	}
	var more []store.Change
	if r.cfg.Registration == credential.Invite {
		code := c.Request().Header.Get(wire.HeaderInvite)
		_, change, err := r.invites().Redeem(c.Request().Context(), code, "", time.Now())
		switch {
		case code == "", errors.Is(err, store.ErrNotFound), errors.Is(err, credential.ErrSpent):
			return r.answerGuess(c, http.StatusForbidden, "registration_closed", "registration needs a valid invite code from the owner")
		case err != nil:
			return r.answerUnavailable(c, err)
		}
		more = append(more, change)
	}
	wanted, _ := id.Str()
	return r.registerAgent(c, wanted, more...)
}

// registerAgent registers an agent and answers the request. If wanted is empty, the relay chooses the id. others are
// stored in the same transaction as the registration.
func (r *Relay) registerAgent(c echo.Context, wanted string, others ...store.Change) error {
	id, token, err := r.agents.register(c.Request().Context(), registration{ID: wanted}, others...)
	switch {
	case errors.Is(err, errBadID):
		return answerFault(c, http.StatusBadRequest, "invalid_agent_id", "an agent id has 3 to 64 characters from a-z 0-9 -, and begins and ends with a letter or digit")
	case errors.Is(err, errTaken):
		return answerFault(c, http.StatusConflict, "agent_id_taken", "the agent id is taken; choose another one")
	case errors.Is(err, store.ErrConflict):
		return answerFault(c, http.StatusForbidden, "registration_closed", "the invite code was used already")
	case errors.Is(err, errFull):
		return answerFault(c, http.StatusServiceUnavailable, "registry_full", "the relay takes no more agents")
	case err != nil:
		return r.answerUnavailable(c, err)
	}
	return httpapi.JSON(c, http.StatusOK, frame.Credentials{AgentID: id, Token: token})
}

// answerGuess refuses a wrong token or invite code, and counts it as a failure of the client's address.
func (r *Relay) answerGuess(c echo.Context, status int, code, message string) error {
	if wait := r.failures.Fail(httpapi.ClientAddr(c), time.Now()); wait > 0 {
		return answerRateLimit(c, wait)
	}
	return answerFault(c, status, code, message)
}

// answerUnavailable answers a registration that failed for a reason of our own, which only the log has.
func (r *Relay) answerUnavailable(c echo.Context, err error) error {
	r.log.Error("cannot register an agent", "err", err)
	return answerFault(c, http.StatusServiceUnavailable, frame.CodeUnavailable, "the relay cannot take the request now")
}

// readRegistration returns the id that the body of a registration asks for: null if it asks for none (AR-1). It reports
// false if the body is neither empty nor a JSON object.
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

// connect accepts the connection of an agent (AR-6 to AR-8). Failures of an address never keep out a valid token,
// because another agent may have caused them from the same address.
func (r *Relay) connect(c echo.Context) error {
	req := c.Request()
	if !websocket.IsUpgrade(req) {
		c.Response().Header().Set("Upgrade", "websocket")
		return answerFault(c, http.StatusUpgradeRequired, "upgrade_required", "this path accepts only WebSocket connections")
	}
	a, ok := r.agents.lookup(tokenOf(req))
	if !ok {
		return r.answerGuess(c, http.StatusUnauthorized, "invalid_token", "the token is missing or wrong")
	}
	conn, err := websocket.Accept(c.Response(), req, websocket.Options{
		ReadLimit: frame.ReadLimit, QueueFrames: queueFrames, QueueBytes: queueBytes, Ping: frame.PingEvery, Silence: frame.GoneAfter, Origins: r.cfg.Origins,
	})
	if err != nil {
		return nil // Accept has answered
	}
	s := &session{id: a.ID, token: a.Token, trusted: a.Trusted, conn: conn}
	if closeErr := r.conns.enter(s, r.agents, r.newWelcome(a.ID)); closeErr != nil {
		conn.Close(closeErr.Code, closeErr.Reason)
		conn.Drain() // ends at most four seconds after the close frame is written
		return nil
	}
	r.log.Debug("an agent connected", slog.String("agent", a.ID))
	go r.read(s)
	return nil
}

// tokenOf returns the token of a request, from the header or from the query. The reference clients know only the query
// (AR-7). tokenOf removes the query from the request, so that no later handler can log the token.
func tokenOf(req *http.Request) string {
	query := req.URL.Query().Get("token")
	req.URL.RawQuery = ""
	req.RequestURI = req.URL.Path
	if token, ok := httpapi.Bearer(req); ok {
		return token
	}
	return query
}
