package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ownerAPI is the folder with a configuration and the recorded calls of [TestOwnerAnswers].
const ownerAPI = "testdata/ownerapi"

// recordedCall is one request to the owner API with its answer.
type recordedCall struct {
	head               string // the lines before the answer
	method, path, body string
	from               string // a message, as "conversation intent payload", that a stranger posts before the call
	save               string // name=regular expression: saves its first group for later calls, which use it as {name}
	read               string // for a stream: read the answer up to this text; "none": record only the status
	answer             string
}

// readCalls reads the recorded calls. A block without a request is a comment.
func readCalls(t *testing.T, file string) []recordedCall {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []recordedCall
	for block := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		var c recordedCall
		for line := range strings.Lines(block) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			switch key {
			case ">":
				parts := append(strings.SplitN(value, " ", 3), "")
				c.method, c.path, c.body = parts[0], parts[1], parts[2]
			case "from:":
				c.from = value
			case "save:":
				c.save = value
			case "read:":
				c.read = value
			case "#":
			default:
				c.answer += line
				continue
			}
			c.head += line
		}
		if c.answer = strings.TrimSuffix(c.answer, "\n"); !strings.HasSuffix(c.head, "\n") {
			c.head += "\n"
		}
		list = append(list, c)
	}
	return list
}

// openOwnerAPI opens a process with all roles and bridges in dir. The caller closes the client.
func openOwnerAPI(t *testing.T, dir string) *daemon.Client {
	t.Helper()
	if err := os.CopyFS(dir, os.DirFS(ownerAPI)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "node.token"), 0o600); err != nil { // a checkout leaves it open
		t.Fatal(err)
	}
	a := &app{
		UI: terminal.UI{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, environ: []string{"AGENTMESH_LOG_LEVEL=error"},
		globals: Globals{Data: filepath.Join(dir, "data"), File: filepath.Join(dir, "agentmesh.yaml")},
	}
	if err := (&initCmd{}).Run(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	o, err := a.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestOwnerAnswers makes valid and invalid calls of every operation of the owner API, and compares the answers with the
// recorded ones. Scripts and agents read these answers, so a changed answer is a change of the API. With -update, the
// test records the answers.
func TestOwnerAnswers(t *testing.T) {
	dir := t.TempDir()
	o := openOwnerAPI(t, dir)
	defer o.Close()
	chris := meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh")
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // of ARD
		io.WriteString(w, `{"results":[{"identifier":"urn:air:a.example:agent:a","displayName":"A\u001b[0m","type":"application/a2a-agent-card+json","url":"https://a.example/.well-known/agent-card.json","score":7,"source":"x"}],"pageToken":"more"}`)
	}))
	defer registry.Close()
	r := &ownerReplay{t: t, p: o.Local, saved: map[string]string{
		"registry": registry.URL,
		"self":     string(o.Local.AgentID()), "chris": string(chris.ID), "card": string(chris.Tree.JSON()),
	}, seen: map[string]string{}, tried: map[string][2]bool{}}
	r.server = httptest.NewServer(o.Local.OwnerAPI().Handler())
	defer r.server.Close()
	r.hide(dir, "DIR")
	file := filepath.Join(ownerAPI, "answers.txt")
	var out strings.Builder
	for _, c := range readCalls(t, file) {
		got := ""
		if c.method != "" {
			if got = r.call(c); got != c.answer && !*update {
				t.Fatalf("%sthe answer is not the recorded one (-update records it)\ngot  %s\nwant %s", c.head, got, c.answer)
			}
			got += "\n"
		}
		out.WriteString(c.head + got + "\n")
	}
	r.checkCoverage()
	if *update {
		if err := os.WriteFile(file, []byte(strings.TrimSuffix(out.String(), "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// ownerReplay makes calls and formats their answers for the record.
type ownerReplay struct {
	t      *testing.T
	p      *daemon.Process
	server *httptest.Server
	saved  map[string]string  // by name
	hidden []string           // pairs for a replacer
	seen   map[string]string  // the stable name of each id
	tried  map[string][2]bool // by route: whether a call was granted, and whether one was refused
}

// hide replaces a text that differs between runs with a substitute in the record.
func (r *ownerReplay) hide(text, substitute string) { r.hidden = append(r.hidden, text, substitute) }

func (r *ownerReplay) call(c recordedCall) string {
	r.t.Helper()
	if c.from != "" {
		r.receive(c.from)
	}
	path, body := r.fill(c.path), r.fill(c.body)
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, c.method, r.server.URL+"/owner"+path, in)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set(httpapi.DoorHeader, "cli")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.server.Client().Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", c.method, path, err)
	}
	defer resp.Body.Close()
	var answer []byte
	switch {
	case c.read != "" && c.read != "none":
		for !strings.Contains(string(answer), c.read) {
			part := make([]byte, 4<<10)
			n, err := resp.Body.Read(part)
			if answer = append(answer, part[:n]...); err != nil {
				r.t.Fatalf("%s %s: %v after %s", c.method, path, err, answer)
			}
		}
	default:
		if answer, err = io.ReadAll(resp.Body); err != nil {
			r.t.Fatalf("%s %s: %v", c.method, path, err)
		}
	}
	if c.read == "" {
		if err := apitest.Compare(req, []byte(body), resp.StatusCode, resp.Header, answer); err != nil {
			r.t.Errorf("%s %s answers %d, which openapi.yaml does not describe: %v\n%s", c.method, path, resp.StatusCode, err, answer)
		}
	}
	r.remember(c, path, resp.StatusCode)
	if name, form, ok := strings.Cut(c.save, "="); ok {
		found := regexp.MustCompile(form).FindSubmatch(answer)
		if found == nil {
			r.t.Fatalf("%s %s: no %s in %d %s", c.method, path, form, resp.StatusCode, answer)
		}
		r.saved[name] = string(found[1])
	}
	head := strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Content-Type")))
	if c.read == "none" || len(answer) == 0 {
		return head
	}
	return head + "\n" + strings.ReplaceAll(strings.TrimSpace(r.normalize(string(answer))), "\n\n", "\n")
}

func (r *ownerReplay) fill(s string) string {
	for name, value := range r.saved {
		s = strings.ReplaceAll(s, "{"+name+"}", value)
	}
	return s
}

func (r *ownerReplay) receive(from string) {
	r.t.Helper()
	parts := strings.SplitN(from, " ", 3)
	payload, err := wire.Parse([]byte(parts[2]))
	if err != nil {
		r.t.Fatal(err)
	}
	key := meshtest.Key("chris")
	draft := wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.ConversationID(parts[0]), From: key.Public().AgentID(), To: r.p.AgentID(), Time: time.Now(),
		Intent: wire.Intent(parts[1]), Payload: payload,
	}
	signed, err := key.SignValue(draft.Tree())
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://localhost"+node.Path, bytes.NewReader(signed.JSON()))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.InProcess(r.p.Handler()).RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode >= 300 {
		r.t.Fatalf("the message of the stranger: %d %s %v", resp.StatusCode, answer, err)
	}
}

// differing matches the texts that differ between runs, besides ids: times, keys, digests, sizes of messages.
var differing = []struct {
	form *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`\d+ [A-Z][a-z]{2} \d\d:\d\d:\d\d UTC`), "TIME"},
	{regexp.MustCompile(`SHA256:[A-Za-z0-9+/=]+|sha256:[0-9a-f]+`), "FINGERPRINT"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`age1[0-9a-z]{20,}`), "AGE"},
	{regexp.MustCompile(`/join#[^"]*"`), `/join#KEY"`},
	{regexp.MustCompile(`"(signature|public_key|moltspeak_key|moltspeak_enc_key|key|enc_key|encryption_key|probe|code|token|secret)":"[^"]{20,}"`), `"$1":"KEY"`},
	{regexp.MustCompile(`\b[0-9a-f]{32,}\b`), "HEX"},
	{regexp.MustCompile(`"(bytes|memory|uptime|uptime_seconds|free|used|size|seq|goroutines|attempts)":\d+`), `"$1":0`},
	{regexp.MustCompile(`"(go|os|arch|commit|version|started|build|modified)":"[^"]*"`), `"$1":"BUILD"`},
	{regexp.MustCompile(`"(raw|key_proof|proof|proof_text)":"[^"]+"`), `"$1":"BYTES"`},
	{regexp.MustCompile(`"owner":"[0-9a-f]{12}"`), `"owner":"HEX"`},
}

var someID = regexp.MustCompile(`\b(in|ask|out|note)_[0-9a-f]{11,}\w*|\b(am|conv|msg|arc|tok)_[A-Za-z0-9_.~-]{6,}|\benv-[a-z0-9]{20,}|\b\d{4}-\d\d-\d\d-\d{3}\b`)

// normalize replaces the texts that differ between runs, and numbers ids in the order of their first appearance.
func (r *ownerReplay) normalize(text string) string {
	text = strings.NewReplacer(r.hidden...).Replace(text)
	for _, v := range differing {
		text = v.form.ReplaceAllString(text, v.as)
	}
	return someID.ReplaceAllStringFunc(text, func(id string) string {
		if r.seen[id] == "" {
			prefix, _, ok := strings.Cut(id, "_")
			if !ok {
				prefix = "ref"
			}
			r.seen[id] = fmt.Sprintf("%s#%d", prefix, len(r.seen)+1)
		}
		return r.seen[id]
	})
}

// remember records whether a call of the route was granted or refused.
func (r *ownerReplay) remember(c recordedCall, path string, status int) {
	e := r.p.OwnerAPI().Echo()
	ctx := e.AcquireContext()
	defer e.ReleaseContext(ctx)
	path, _, _ = strings.Cut(path, "?")
	e.Router().Find(c.method, "/owner"+path, ctx)
	route := c.method + " " + ctx.Path()
	tried := r.tried[route]
	tried[0] = tried[0] || status < 400
	tried[1] = tried[1] || status >= 400
	r.tried[route] = tried
}

// takesNothing are routes without parameters and without a body. They have no invalid calls.
var takesNothing = []string{
	"GET /owner/version", "GET /owner/status", "GET /owner/certificate", "POST /owner/backup", "GET /owner/bridges", "GET /owner/links", "POST /owner/pause",
	"POST /owner/resume", "GET /owner/card", "GET /owner/peers", "GET /owner/calendar", "POST /owner/keys/rotate",
	"POST /owner/clients/probes", "GET /owner/clients/probes/:probe",
	"GET /owner/directory/bans", "GET /owner/directory/reports", "GET /owner/mew/spaces", "GET /owner/mew/links",
	"GET /owner/moltspeak", "GET /owner/moltspeak/peers", "GET /owner/moltspeak/consents",
	"GET /owner/agentrelay/agents", "POST /owner/agentrelay/invites", "GET /owner/a2a/tokens",
}

// needsOthers are routes that refuse every call until another party has done something that this test does not do.
var needsOthers = []string{
	"POST /owner/sign-in", "POST /owner/phones", "DELETE /owner/phones", "POST /owner/inbox/:id/retry", "POST /owner/calendar/cancel", "DELETE /owner/directory/reports/:report", "POST /owner/mess/fetch/:ref",
	"POST /owner/mew/spaces/:name/proposals/:proposal", "POST /owner/mew/links/:name/proposals/:proposal",
	"POST /owner/mew/links/:name/messages",
	"GET /owner/moltspeak/search", "DELETE /owner/moltspeak/consents/:id", "DELETE /owner/moltspeak/peers/:name",
	"PUT /owner/moltspeak/peers/:name/pii", "DELETE /owner/moltspeak/peers/:name/pii",
	"POST /owner/agentrelay/links/:link/broadcast", "POST /owner/agentrelay/links/:link/command",
}

// checkCoverage fails the test unless every operation has a granted and a refused call.
func (r *ownerReplay) checkCoverage() {
	for _, route := range r.p.OwnerAPI().Echo().Routes() {
		if !strings.HasPrefix(route.Path, "/owner/") || strings.HasPrefix(route.Path, "/owner/page") || route.Method == "echo_route_not_found" {
			continue
		}
		if strings.HasSuffix(route.Path, "*") && route.Method != http.MethodGet { // one handler for every method
			continue
		}
		name := route.Method + " " + route.Path
		if tried := r.tried[name]; !tried[0] && !slices.Contains(needsOthers, name) || !tried[1] && !slices.Contains(takesNothing, name) {
			r.t.Errorf("%s: granted %v, refused %v: a call is missing", name, tried[0], tried[1])
		}
	}
}
