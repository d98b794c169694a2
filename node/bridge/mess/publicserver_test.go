package mess

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// publicServer behaves like the two public exchange servers (teaguesterling/git-messe-af at 96dbd6b). They enforce
// nothing: every key reads and changes every thread, an answer does not change the state, and any state may follow any
// other.
//
// The Node server accepts any word as a status, shows no message for a change of status, and has no ack. The PHP server
// accepts only the words in phpStatuses, shows a message for each change, dates in whole seconds, and ignores a PATCH
// with an unknown status.
type publicServer struct {
	php    bool
	closed string // the reason for which it accepts no requests, or ""

	mu      sync.Mutex
	keys    map[string][2]string // key → exchange, executor
	threads []*publicThread
	calls   []string // actor and status of each PATCH, in order
	refs    int
}

type publicThread struct {
	exchange string

	Ref      string           `json:"ref"`
	Status   string           `json:"status"`
	Intent   string           `json:"intent"`
	From     string           `json:"requestor_id"`
	Executor *string          `json:"executor_id"`
	Priority string           `json:"priority"`
	Created  string           `json:"created_at"`
	Updated  string           `json:"updated_at"`
	Messages []*publicMessage `json:"messages,omitempty"`
}

type publicMessage struct {
	From string          `json:"from"`
	At   string          `json:"ts"`
	Mess json.RawMessage `json:"mess"`
}

var phpStatuses = []string{"pending", "claimed", "in-progress", "needs-input", "completed", "rejected", "cancelled", "expired"}

func (s *publicServer) now() string {
	if s.php {
		return time.Now().UTC().Format(time.RFC3339)
	}
	return time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
}

func (s *publicServer) fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}

func (s *publicServer) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *publicServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest, ok := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/"), "/api/v1/exchanges/")
	exchange, path, _ := strings.Cut(rest, "/")
	switch {
	case r.URL.Path == "/health":
		s.answer(w, http.StatusOK, map[string]string{"status": "ok", "service": "mess-exchange"})
		return
	case !ok || exchange == "":
		s.fail(w, http.StatusNotFound, "Not found")
		return
	case path == "register" && r.Method == http.MethodPost:
		s.register(w, r, exchange)
		return
	}
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	who, known := s.keys[key]
	switch {
	case !ok || key == "":
		s.fail(w, http.StatusUnauthorized, "Authorization required")
	case !known:
		s.fail(w, http.StatusUnauthorized, "Invalid token")
	case who[0] != exchange:
		s.fail(w, http.StatusForbidden, "Access denied to this exchange")
	case path == "requests" && r.Method == http.MethodGet:
		s.list(w, exchange)
	case path == "requests" && r.Method == http.MethodPost:
		s.create(w, r, exchange, who[1])
	case strings.HasPrefix(path, "requests/"):
		s.thread(w, r, exchange, who[1], strings.TrimPrefix(path, "requests/"))
	default:
		s.fail(w, http.StatusNotFound, "Not found")
	}
}

func (s *publicServer) register(w http.ResponseWriter, r *http.Request, exchange string) {
	var body struct {
		ID string `json:"executor_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.ID == "" {
		s.fail(w, http.StatusBadRequest, "executor_id required")
		return
	}
	for _, who := range s.keys {
		if who == [2]string{exchange, body.ID} {
			s.fail(w, http.StatusConflict, "Executor already registered")
			return
		}
	}
	key := fmt.Sprintf("mess_%s_%x", exchange, []byte(rand.Text())[:16])
	s.keys[key] = [2]string{exchange, body.ID}
	s.answer(w, http.StatusCreated, map[string]string{"executor_id": body.ID, "api_key": key, "message": "Save this API key"})
}

func (s *publicServer) list(w http.ResponseWriter, exchange string) {
	list := []publicThread{}
	for _, t := range s.threads {
		if t.exchange == exchange {
			short := *t
			short.Messages = nil
			list = append(list, short)
		}
	}
	slices.Reverse(list)
	slices.SortStableFunc(list, func(a, b publicThread) int { return strings.Compare(b.Updated, a.Updated) })
	s.answer(w, http.StatusOK, map[string]any{"threads": list})
}

func (s *publicServer) create(w http.ResponseWriter, r *http.Request, exchange, who string) {
	if s.closed != "" {
		s.fail(w, http.StatusForbidden, s.closed)
		return
	}
	var body struct {
		Intent   string          `json:"intent"`
		Context  json.RawMessage `json:"context"`
		Priority string          `json:"priority"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Intent == "" {
		s.fail(w, http.StatusBadRequest, "intent required")
		return
	}
	s.refs++
	now := s.now()
	t := &publicThread{
		exchange: exchange, Ref: fmt.Sprintf("%s-%04X", now[:10], s.refs), Status: "pending", Intent: body.Intent, From: who,
		Priority: "normal", Created: now, Updated: now,
	}
	if body.Context == nil {
		body.Context = json.RawMessage(`[]`)
	}
	request, _ := json.Marshal(map[string]any{"request": map[string]any{"intent": body.Intent, "context": body.Context, "response_hint": []string{}}})
	if s.php {
		t.say(who, now, `[{"v":"1.0.0"},`+string(request)+`]`)
		t.say("exchange", now, `[{"ack":{"re":"last","ref":"`+t.Ref+`"}}]`)
	} else {
		t.say(who, now, `[`+string(request)+`]`)
	}
	s.threads = append(s.threads, t)
	s.answer(w, http.StatusCreated, map[string]string{"ref": t.Ref, "status": "pending"})
}

func (t *publicThread) say(who, at, mess string) {
	t.Messages = append(t.Messages, &publicMessage{From: who, At: at, Mess: json.RawMessage(mess)})
}

func (s *publicServer) thread(w http.ResponseWriter, r *http.Request, exchange, who, ref string) {
	i := slices.IndexFunc(s.threads, func(t *publicThread) bool { return t.exchange == exchange && t.Ref == ref })
	switch {
	case i < 0:
		s.fail(w, http.StatusNotFound, "Thread not found")
		return
	case r.Method == http.MethodGet:
		s.answer(w, http.StatusOK, map[string]any{"thread": s.threads[i]})
		return
	case r.Method != http.MethodPatch:
		s.fail(w, http.StatusNotFound, "Not found")
		return
	}
	t := s.threads[i]
	var body struct {
		Status  string          `json:"status"`
		Message string          `json:"message"`
		Mess    json.RawMessage `json:"mess"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.fail(w, http.StatusBadRequest, "Invalid JSON body")
		return
	}
	s.calls = append(s.calls, strings.TrimSpace(who+" "+body.Status))
	now := s.now()
	if body.Status != "" && body.Status != t.Status {
		if s.php && !slices.Contains(phpStatuses, body.Status) {
			s.fail(w, http.StatusBadRequest, "Invalid status")
			return
		}
		t.Status = body.Status
		if body.Status == "claimed" || s.php && body.Status == "in-progress" {
			t.Executor = &who
		}
		if s.php {
			status := map[string]string{"re": t.Ref, "code": body.Status}
			if body.Message != "" {
				status["message"] = body.Message
			}
			said, _ := json.Marshal([]any{map[string]any{"status": status}})
			t.say(who, now, string(said))
		}
	}
	if len(body.Mess) > 0 {
		t.say(who, now, string(body.Mess))
	}
	t.Updated = now
	s.answer(w, http.StatusOK, map[string]string{"ref": t.Ref, "status": t.Status})
}

// statusCalls returns the statuses of the PATCHes of an actor, in order.
func (s *publicServer) statusCalls(who string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.calls {
		if by, status, _ := strings.Cut(c, " "); by == who {
			out = append(out, status)
		}
	}
	return strings.Join(out, ",")
}

// publicLink is a public exchange with an executor bob and a requester carol, and a node with a link to it.
type publicLink struct {
	t        *testing.T
	server   *publicServer // nil for a real server
	base     string
	exchange string
	home     *meshNode
	keys     map[string]string
}

// eachPublicServer runs a test against the servers for links: the stand-ins, or the real one at AGENTMESH_MESS.
func eachPublicServer(t *testing.T, test func(t *testing.T, begin func(change func(*Config)) *publicLink)) {
	t.Helper()
	if base := os.Getenv("AGENTMESH_MESS"); base != "" {
		t.Run("real", func(t *testing.T) {
			test(t, func(change func(*Config)) *publicLink { return newPublicLink(t, nil, base, change) })
		})
		return
	}
	for name, php := range map[string]bool{"node": false, "php": true} {
		t.Run(name, func(t *testing.T) {
			test(t, func(change func(*Config)) *publicLink {
				s := &publicServer{php: php, keys: map[string][2]string{}}
				return newPublicLink(t, s, serve(t, s), change)
			})
		})
	}
}

func newPublicLink(t *testing.T, s *publicServer, base string, change func(*Config)) *publicLink {
	t.Helper()
	w := &publicLink{t: t, server: s, base: strings.TrimSuffix(base, "/"), exchange: "t" + strings.ToLower(rand.Text()[:10]), keys: map[string]string{}}
	for _, who := range []string{"us", "bob", "carol"} {
		_, v := w.call("", http.MethodPost, "register", `{"executor_id":"`+who+`"}`)
		if w.keys[who] = v.GetStr("api_key"); w.keys[who] == "" {
			t.Fatalf("no key for %s", who)
		}
	}
	w.home = newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Links = []bridge.Link{{Name: "town", Kind: Kind, URL: w.base, Exchange: w.exchange}}
		c.Tokens = map[string]client.Credential{"town": client.Credential(w.keys["us"])}
		if change != nil {
			change(c)
		}
	})
	return w
}

func (w *publicLink) call(who, method, path, body string) (int, wire.Value) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.base+"/api/v1/exchanges/"+w.exchange+"/"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+w.keys[who])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	v, _ := wire.Parse(data)
	return resp.StatusCode, v
}

// set makes a PATCH of a thread there as who, with a status word that the server knows; more are further members.
func (w *publicLink) set(who, there string, code thread.Code, more string) {
	w.t.Helper()
	bodies := []string{`{` + more + `}`}
	if code != "" {
		bodies = []string{`{"status":"` + code.RESTName() + `"` + more + `}`, `{"status":"` + strings.ReplaceAll(code.RESTName(), "_", "-") + `"` + more + `}`}
	}
	for i, body := range bodies {
		status, v := w.call(who, http.MethodPatch, "requests/"+there, body)
		if status == http.StatusOK {
			break
		}
		if i == len(bodies)-1 {
			w.t.Fatalf("PATCH %s: %d %s", body, status, v.JSON())
		}
	}
	w.wakePoll()
}

func (w *publicLink) wakePoll() { w.home.bridge.links.All()[0].wakePoll() }

func (w *publicLink) thread(there string) wire.Value {
	w.t.Helper()
	_, v := w.call("bob", http.MethodGet, "requests/"+there, "")
	t, _ := v.Get("thread")
	return t
}

func (w *publicLink) status(there string) thread.Code {
	w.t.Helper()
	c, _ := thread.ParseCode(w.thread(there).GetStr("status"))
	return c
}

func (w *publicLink) only(intent string) (there string) {
	w.t.Helper()
	eventually(w.t, intent+" over there", func() bool {
		_, v := w.call("bob", http.MethodGet, "requests", "")
		list, _ := v.Get("threads")
		for th := range list.Elems() {
			if th.GetStr("intent") == intent {
				there = th.GetStr("ref")
			}
		}
		return there != ""
	})
	return there
}

func (w *publicLink) ask(intent string) (here, there string) {
	w.t.Helper()
	here = w.home.request(thread.OwnerID, "{id: "+intent+", intent: "+intent+"}")
	w.home.sendThrough(here)
	return here, w.only(intent)
}

// offerRequest opens a request of carol there that our owner may claim.
func (w *publicLink) offerRequest(intent string) (there, here string) {
	w.t.Helper()
	if status, v := w.call("carol", http.MethodPost, "requests", `{"intent":"`+intent+`"}`); status != http.StatusCreated {
		w.t.Fatalf("%d %s", status, v.JSON())
	}
	w.wakePoll()
	return w.only(intent), w.home.waitThread(intent)
}
