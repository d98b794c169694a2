package gateway

import (
	"context"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ServeHTTP serves every route of the gateway: WebSockets, /participants* and /health.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.cors(w, r) {
		return
	}
	path := r.URL.Path
	switch {
	case websocket.IsUpgrade(r) && (g.cfg.AnyPath || path == "/ws"):
		g.serveSocket(w, r)
	case path == "/ws":
		w.Header().Set("Upgrade", "websocket")
		answer(w, http.StatusUpgradeRequired, errorBody("this path accepts only WebSocket connections"))
	case path == "/health" && r.Method == http.MethodGet:
		g.health(w)
	case path == "/participants" && r.Method == http.MethodGet:
		g.listParticipants(w, r)
	default:
		id, ok := parseMessagesPath(r.URL)
		switch {
		case !ok:
			answer(w, http.StatusNotFound, errorBody("Not found"))
		case r.Method == http.MethodPost:
			g.inject(w, r, id)
		case r.Method == http.MethodGet:
			g.poll(w, r, id)
		default:
			w.Header().Set("Allow", "GET, POST")
			answer(w, http.StatusMethodNotAllowed, errorBody("Method not allowed"))
		}
	}
}

// parseMessagesPath returns the id in /participants/{id}/messages.
func parseMessagesPath(u *url.URL) (string, bool) {
	rest, ok := strings.CutPrefix(u.EscapedPath(), "/participants/")
	id, tail, found := strings.Cut(rest, "/")
	if !ok || !found || tail != "messages" {
		return "", false
	}
	id, err := url.PathUnescape(id)
	return id, err == nil && envelope.IsName(id)
}

// cors adds CORS headers for pages of the configured origins, and for no other pages (MEW-H2). It reports whether it
// answered the request.
func (g *Gateway) cors(w http.ResponseWriter, r *http.Request) (done bool) {
	origin := r.Header.Get("Origin")
	if origin == "" || !slices.Contains(g.cfg.CORSOrigins, origin) {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	if r.Method != http.MethodOptions {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
	w.WriteHeader(http.StatusNoContent)
	return true
}

func errorBody(message string) wire.Value { return wire.Obj(wire.TextField("error", message)) }

func answer(w http.ResponseWriter, status int, body wire.Value) { answerJSON(w, status, body.JSON()) }

func answerJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

func answerRefusal(w http.ResponseWriter, r *envelope.Refusal) {
	body := r.Payload
	if !r.Body.IsNull() {
		body = r.Body
	}
	if wait, ok := body.Get("retry_after"); ok {
		seconds, _ := wait.Num()
		w.Header().Set("Retry-After", seconds)
	}
	answer(w, r.Status, body)
}

// authenticateCaller finds the member that makes a request. If id is not empty, the member must be the participant with
// that id. If authentication fails, authenticateCaller answers the request.
func (g *Gateway) authenticateCaller(w http.ResponseWriter, r *http.Request, id string) (*Space, *member, bool) {
	token, ok := bearer(r)
	if !ok || token == "" {
		answer(w, http.StatusUnauthorized, errorBody("Missing or invalid authorization header"))
		return nil, nil, false
	}
	requested := r.URL.Query().Get("space")
	s, m, ok := g.authenticate(token, requested)
	if !ok {
		fault := envelope.Refuse(http.StatusForbidden, "forbidden", wire.TextField("error", "Invalid token for participant"))
		answerRefusal(w, g.chargeFailedJoin(addressOf(r), requested, fault))
		return nil, nil, false
	}
	s.mu.Lock()
	ok = id == "" || s.members.find(id) == m
	s.unlock()
	if !ok {
		refuseCaller(w)
	}
	return s, m, ok
}

func refuseCaller(w http.ResponseWriter) {
	answer(w, http.StatusForbidden, errorBody("Invalid token for participant"))
}

// isKicked reports whether a kick revoked the token of a request after the gateway authenticated its sender m.
func isKicked(m *member, r *http.Request) bool {
	token, _ := bearer(r)
	return !m.admits(credential.HashOf(token))
}

// inject receives an envelope over HTTP, under the same rules as over a WebSocket (MEW-59, MEW-H1).
func (g *Gateway) inject(w http.ResponseWriter, r *http.Request, id string) {
	s, m, ok := g.authenticateCaller(w, r, id)
	if !ok {
		return
	}
	if contentType := r.Header.Get("Content-Type"); contentType != "" {
		if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
			answer(w, http.StatusUnsupportedMediaType, errorBody("the body must be application/json"))
			return
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, envelope.MaxEnvelope))
	if err != nil {
		if _, over := errors.AsType[*http.MaxBytesError](err); over {
			answerRefusal(w, envelope.RefuseTooLarge())
		} else {
			answer(w, http.StatusBadRequest, errorBody("the body could not be read"))
		}
		return
	}
	e, fault := envelope.Parse(body)
	s.mu.Lock()
	if isKicked(m, r) { // while the body came
		s.unlock()
		refuseCaller(w)
		return
	}
	if m.output != nil {
		s.joinByLog(m) // the participant of an output log joins with its first message (MEW-D6)
	}
	got, fault := s.handle(m, e, fault, "http")
	sender := m.id // a join may change it after the unlock
	s.unlock()
	switch {
	case fault == nil:
		answer(w, got.code, got.body)
	case fault.Whole:
		answerJSON(w, fault.Status, fault.Envelope(sender, e.ID).Append(nil, envelope.NewID(), envelope.FormatTime(time.Now())))
	default:
		answerRefusal(w, fault)
	}
}

// maxWait bounds how long a poll waits for an envelope.
const maxWait = 25 * time.Second

// poll answers with the envelopes that the participant could have seen since a time (MEW-60, MEW-H2).
func (g *Gateway) poll(w http.ResponseWriter, r *http.Request, id string) {
	s, m, ok := g.authenticateCaller(w, r, id)
	if !ok {
		return
	}
	q := r.URL.Query()
	since, limit, wait, ok := parsePollQuery(q)
	if !ok {
		answer(w, http.StatusBadRequest, errorBody("since must be an RFC 3339 time, limit and wait whole numbers"))
		return
	}
	if wait > 0 { // the timeouts of the listener may be shorter
		deadline := time.Now().Add(wait + 10*time.Second)
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(deadline) // in-process requests have no deadlines
		_ = rc.SetWriteDeadline(deadline)
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	for {
		s.mu.Lock()
		if isKicked(m, r) { // while it waited
			s.unlock()
			refuseCaller(w)
			return
		}
		messages, next := s.out.history.since(since, m, limit)
		wake := s.out.changed.Wait()
		s.unlock()
		if len(messages) > 0 || wait == 0 {
			answer(w, http.StatusOK, wire.Obj(wire.Field("messages", wire.Arr(messages...)),
				wire.TextField("next_since", next.UTC().Format(time.RFC3339Nano))))
			return
		}
		since = next
		select {
		case <-wake:
		case <-ctx.Done():
			wait = 0
		}
	}
}

func parsePollQuery(q url.Values) (since time.Time, limit int, wait time.Duration, ok bool) {
	limit, ok = maxPoll, true
	if text := q.Get("since"); text != "" {
		t, err := time.Parse(time.RFC3339Nano, strings.ReplaceAll(text, " ", "+")) // a client may leave the offset unescaped
		since, ok = t, err == nil
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		limit, ok = min(max(n, 1), maxPoll), ok && err == nil && n > 0
	}
	if text := q.Get("wait"); text != "" {
		n, err := strconv.Atoi(strings.TrimSuffix(text, "s"))
		ok = ok && err == nil && n >= 0
		wait = time.Duration(min(max(n, 0), int(maxWait/time.Second))) * time.Second
	}
	return since, limit, wait, ok
}

func (g *Gateway) listParticipants(w http.ResponseWriter, r *http.Request) {
	s, _, ok := g.authenticateCaller(w, r, "")
	if !ok {
		return
	}
	answer(w, http.StatusOK, wire.Obj(wire.Field("participants", s.participants())))
}

// participants lists the participants of the space by name, except kicked ones.
func (s *Space) participants() wire.Value {
	s.mu.Lock()
	defer s.unlock()
	var out []wire.Value
	for _, name := range slices.Sorted(maps.Keys(s.members.byName)) {
		if m := s.members.byName[name]; !m.record.Barred {
			out = append(out, wire.Obj(wire.TextField("id", m.id), wire.Field("connected", wire.Bool(m.isPresent())), wire.Field("capabilities", m.shown)))
		}
	}
	return wire.Arr(out...)
}

var features = []string{"capability-grants", "participant-control", "http-injection", "http-polling", "space-invite", "streams", "stream-targets", "stream-writers"}

// health answers /health. Clients poll it until status is ok (MEW-D2).
func (g *Gateway) health(w http.ResponseWriter) {
	answer(w, http.StatusOK, wire.Obj(
		wire.TextField("status", "ok"), wire.Field("spaces", wire.Int(int64(len(g.order)))),
		wire.Field("clients", wire.Int(int64(g.conns.Len()))),
		wire.Field("uptime", wire.Int(int64(time.Since(g.began).Seconds()))),
		wire.Field("features", wire.Texts(features)),
	))
}
