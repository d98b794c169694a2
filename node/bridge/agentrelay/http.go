package agentrelay

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
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

// faultBody is an error of the relay's HTTP routes (AR-3).
type faultBody struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

func faultOf(c echo.Context, status int, code, message string) error {
	return httpapi.JSON(c, status, faultBody{code, message})
}

// limited answers a request that came too early.
func limited(c echo.Context, wait time.Duration) error {
	c.Response().Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
	return faultOf(c, http.StatusTooManyRequests, codeRate, "too many requests; try again later")
}

// Credentials is the answer to a registration.
type Credentials struct {
	AgentID string `json:"agent_id"`
	Token   string `json:"token"`
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
		change, ok := r.redeem(c)
		if !ok {
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
		return faultOf(c, http.StatusServiceUnavailable, codeUnavailable, "the relay cannot take the request now")
	}
	return httpapi.JSON(c, http.StatusOK, Credentials{got, token})
}

// readRegistration returns the id that is asked for: null where there is none (AR-1).
func readRegistration(body []byte) (wire.Value, bool) {
	if strings.TrimSpace(string(body)) == "" {
		return wire.Value{}, true
	}
	v, err := wire.ParseForeign(body, maxDepth, maxValues)
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
		ReadLimit: readLimit, QueueFrames: queueFrames, QueueBytes: queueBytes, Ping: pingEvery, Silence: goneAfter, Origins: r.cfg.Origins,
	})
	if err != nil {
		return nil // answered
	}
	s := &session{id: a.ID, token: a.Token, trusted: a.Trusted, since: time.Now(), conn: conn}
	if refused := r.enter(s); refused != nil {
		conn.Close(refused.Code, refused.Reason)
		finish(conn) // at most two seconds: this goroutine is the connection's
		return nil
	}
	r.log.Debug("an agent connected", slog.String("agent", a.ID))
	go r.talk(s)
	return nil
}

// finish reads a connection that was closed to its end, which is at most the time that a close may take.
func finish(conn *websocket.Conn) {
	for {
		if _, _, err := conn.Read(); err != nil {
			return
		}
	}
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

// stats is the document of GET /stats: the members of the public relay and those of its documentation (AR-32).
type stats struct {
	Relay struct {
		Connected     int      `json:"connected"`
		Agents        []string `json:"agents"`
		Subscriptions int      `json:"subscriptions"`
	} `json:"relay"`
	Registry struct {
		Registered int      `json:"registered"`
		Agents     []string `json:"agents"`
	} `json:"registry"`
	Registered int   `json:"registered_agents"`
	Active     int   `json:"active_connections"`
	PerMinute  int   `json:"messages_per_minute"`
	Uptime     int64 `json:"uptime"`
}

const (
	statsFor = 2 * time.Second // that one answer is good: many that ask cost what one costs
	maxNamed = 1000            // agents in each list of the statistics; the counts know no bound
)

// statsPage is the statistics as they were told last.
type statsPage struct {
	mu   sync.Mutex
	made time.Time
	body []byte
}

// stats returns the statistics, as of at most statsFor ago.
func (r *Relay) stats(now time.Time) []byte {
	r.told.mu.Lock()
	defer r.told.mu.Unlock()
	if r.told.body == nil || now.Sub(r.told.made) >= statsFor {
		r.told.made = now
		r.told.body, _ = json.Marshal(r.count(now)) // numbers and strings always encode
	}
	return r.told.body
}

func (r *Relay) count(now time.Time) stats {
	var out stats
	out.Relay.Agents, out.Registry.Agents = []string{}, []string{}
	out.Relay.Connected = r.Health().Connections
	out.Registry.Registered = r.agents.count()
	out.Active, out.Registered = out.Relay.Connected, out.Registry.Registered
	out.Relay.Subscriptions = r.subscriptions()
	out.PerMinute, out.Uptime = r.perMinute(now), int64(now.Sub(r.began).Seconds())
	if r.cfg.Stats != StatsPublic {
		return out
	}
	for _, a := range r.agents.list() {
		out.Registry.Agents = append(out.Registry.Agents, a.ID)
	}
	out.Relay.Agents = firstOf(r.connected())
	out.Registry.Agents = firstOf(out.Registry.Agents)
	return out
}

// perMinute counts the frames of the last minute.
func (r *Relay) perMinute(now time.Time) int {
	r.counting.Lock()
	defer r.counting.Unlock()
	return r.recent.Count(now)
}

func firstOf(ids []string) []string { return ids[:min(len(ids), maxNamed)] }

func (r *Relay) getStats(c echo.Context) error {
	return httpapi.Raw(c, http.StatusOK, r.stats(time.Now()))
}

func (r *Relay) subscriptions() int {
	r.mu.Lock()
	open := make([]*session, 0, len(r.sessions))
	for _, s := range r.sessions {
		open = append(open, s)
	}
	r.mu.Unlock()
	n := 0
	for _, s := range open {
		s.mu.Lock()
		n += len(s.subs)
		s.mu.Unlock()
	}
	return n
}

// Health is the relay's part of /health (AR-33).
type Health struct {
	Status      string `json:"status"`
	Uptime      int64  `json:"uptime"` // seconds
	Connections int    `json:"connections"`
}

// Health says how the relay is.
func (r *Relay) Health() Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Health{"ok", int64(time.Since(r.began).Seconds()), len(r.sessions)}
}
