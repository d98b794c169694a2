package relay

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

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

// httpFault refuses a request.
type httpFault struct {
	status        int
	code, message string
}

func (f *httpFault) Error() string { return f.message }

// refusals are the answers to registrations that the registry refuses.
var refusals = map[error]*httpFault{
	credential.ErrClosed:  {http.StatusForbidden, "registration_closed", "the owner of this relay hands out the tokens; ask the owner for one"},
	credential.ErrInvite:  {http.StatusForbidden, "registration_closed", "registration needs a valid invite code from the owner"},
	credential.ErrTaken:   {http.StatusConflict, "agent_id_taken", "the agent id is taken; choose another one"},
	credential.ErrFull:    {http.StatusServiceUnavailable, "registry_full", "the relay takes no more agents"},
	store.ErrQuota:        {http.StatusServiceUnavailable, "registry_full", "the relay takes no more agents"},
	credential.ErrUnknown: {http.StatusNotFound, "unknown_agent", "the relay has no such agent"},
	errBadID:              {http.StatusBadRequest, "invalid_agent_id", "an agent id has 3 to 64 characters from a-z 0-9 -, begins and ends with a letter or digit, and is not the id relay"},
	errBadToken:           {http.StatusUnauthorized, "invalid_token", "the token is missing or wrong"},
}

var errBadToken = errors.New("agentrelay: the token is missing or wrong")

// faultOf returns the refusal for an error, or nil for a failure of our own.
func faultOf(err error) *httpFault {
	for known, f := range refusals {
		if errors.Is(err, known) {
			return f
		}
	}
	fault, _ := errors.AsType[*httpFault](err)
	return fault
}

// answerError answers a registration or connection that failed. Only the log has the reason for a failure of our own.
func (r *Relay) answerError(c echo.Context, err error) error {
	if busy, ok := errors.AsType[*credential.Busy](err); ok {
		c.Response().Header().Set("Retry-After", strconv.FormatInt(wire.CeilSeconds(busy.Wait), 10))
		return answerFault(c, http.StatusTooManyRequests, frame.CodeRate, "too many requests; try again later")
	}
	if fault := faultOf(err); fault != nil {
		return answerFault(c, fault.status, fault.code, fault.message)
	}
	r.log.Error("cannot register an agent", "err", err)
	return answerFault(c, http.StatusServiceUnavailable, frame.CodeUnavailable, "the relay cannot take the request now")
}

// postRegister serves POST /register.
func (r *Relay) postRegister(c echo.Context) error {
	httpapi.Private(c)
	var a member
	token, from := "", httpapi.ClientAddr(c)
	err := r.agents.Charge(from, func() (err error) {
		if a.ID, err = readRegistration(c); err == nil {
			err = r.name(&a)
		}
		if err == nil {
			token, err = r.agents.Admit(c.Request().Context(), &a, c.Request().Header.Get(wire.HeaderInvite), "")
		}
		return err
	})
	if errors.Is(err, credential.ErrInvite) {
		err = r.agents.Fail(from, err)
	}
	if err != nil {
		return r.answerError(c, err)
	}
	return httpapi.JSON(c, http.StatusOK, frame.Credentials{AgentID: a.ID, Token: token})
}

// readRegistration returns the id that the body of a registration asks for, or "" (AR-1).
func readRegistration(c echo.Context) (id string, err error) {
	body, err := httpapi.ReadBody(c.Response(), c.Request(), maxRegister)
	if errors.Is(err, wire.ErrTooLarge) {
		return "", &httpFault{http.StatusRequestEntityTooLarge, "invalid_json", "the body is too large"}
	} else if err != nil {
		return "", &httpFault{http.StatusBadRequest, "invalid_json", "the body cannot be read"}
	}
	if strings.TrimSpace(string(body)) == "" {
		return "", nil
	}
	v, err := wire.ParseForeign(body, frame.MaxDepth, frame.MaxValues)
	if err != nil || v.Kind() != wire.Object {
		return "", &httpFault{http.StatusBadRequest, "invalid_json", "the body must be a JSON object"}
	}
	wanted, _ := v.Get("agent_id")
	id, isText := wanted.Str()
	if !isText && !wanted.IsNull() {
		return "", &httpFault{http.StatusBadRequest, "invalid_agent_id", "agent_id must be a string"}
	}
	return id, nil
}

// connect accepts the connection of an agent (AR-6 to AR-8). Failures of an address never keep out a valid token,
// because another agent may have caused them from the same address.
func (r *Relay) connect(c echo.Context) error {
	req := c.Request()
	if !websocket.IsUpgrade(req) {
		c.Response().Header().Set("Upgrade", "websocket")
		return answerFault(c, http.StatusUpgradeRequired, "upgrade_required", "this path accepts only WebSocket connections")
	}
	a := r.agents.Find(tokenOf(req))
	if a == nil {
		return r.answerError(c, r.agents.Fail(httpapi.ClientAddr(c), errBadToken))
	}
	conn, err := websocket.Accept(c.Response(), req, websocket.Options{
		ReadLimit: frame.ReadLimit, QueueFrames: queueFrames, QueueBytes: queueBytes, Ping: frame.PingEvery, Silence: frame.GoneAfter, Origins: r.cfg.Origins,
	})
	if err != nil {
		return nil // Accept has answered
	}
	s := &session{id: a.ID, key: a.Key, trusted: a.Trusted, conn: conn}
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
