//go:build slow

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// kitVariable names the folder in which npm installed node@22 and @modelcontextprotocol/conformance@0.2.0-alpha.12.
const kitVariable = "AGENTMESH_MCP_KIT"

func mustServe(t *testing.T, data string, args ...string) *serveProcess {
	t.Helper()
	s, err := startServe(data, args, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Process.Kill()
		s.Wait()
	})
	return s
}

func ownerClient(t *testing.T, data string) *daemon.Client {
	t.Helper()
	o := daemon.Running(t.Context(), data)
	if o == nil {
		t.Fatal("the owner API does not answer")
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// mcpSession is Chris's agent, a process with the tools of the agent's door.
type mcpSession struct {
	*sdk.ClientSession
	t            *testing.T
	mine, theirs string        // data directories of Chris and Sarah
	me           *serveProcess // of Chris
	calls, size  int
}

// startMCP starts the nodes of Chris and Sarah, Chris's with the given arguments, and Chris's agent.
func startMCP(t *testing.T, args ...string) *mcpSession {
	t.Helper()
	return startMCPWith(t, "[]", args...)
}

// startMCPWith is [startMCP] with hooks for Sarah.
func startMCPWith(t *testing.T, hooks string, args ...string) *mcpSession {
	t.Helper()
	home, err := os.MkdirTemp("", "am")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	s := &mcpSession{t: t, mine: filepath.Join(home, "mine"), theirs: filepath.Join(home, "theirs")}
	socket := filepath.Join(home, "agent.sock")
	mustRun(t, s.theirs, "init", "--name=Sarah")
	hub := mustServe(t, s.theirs, "--set=access.mode=open", "--set=hooks="+hooks)
	mustRun(t, s.mine, "init", "--name=Chris")
	s.me = mustServe(t, s.mine, append(args, "--roles=node", "--directory="+hub.info.Directory, "--set=agent_door.socket="+socket)...)
	if err := hub.awaitListing(); err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(agentmeshBinary(os.Environ()), "mcp", "--agent-socket", socket, "--data", filepath.Join(home, "none"))
	s.ClientSession, err = sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), &sdk.CommandTransport{Command: agent}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *mcpSession) call(tool string, args map[string]any) (out map[string]any) {
	s.t.Helper()
	result, err := s.CallTool(s.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil || result.IsError {
		s.t.Fatalf("%s: %v %+v", tool, err, result)
	}
	asked, _ := json.Marshal(args)
	answered, _ := json.Marshal(result)
	s.calls, s.size = s.calls+1, s.size+len(asked)+len(answered)
	if err := json.Unmarshal([]byte(result.Content[0].(*sdk.TextContent).Text), &out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// awaitItem waits for the only message in Sarah's inbox.
func (s *mcpSession) awaitItem() owner.Item {
	s.t.Helper()
	page, err := daemon.Fetch(s.t.Context(), ownerClient(s.t, s.theirs), owner.ListInbox.Call().WithQuery(owner.Params("wait", "20")))
	if err != nil || len(page.Items) != 1 {
		s.t.Fatalf("Sarah's inbox = %+v, %v", page, err)
	}
	return page.Items[0]
}

// TestMCPSchedule: an agent offers free times, another agent accepts one, and the meeting is in the calendar.
func TestMCPSchedule(t *testing.T) {
	t.Parallel()
	busy := "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:mornings\r\nDTSTAMP:20260101T000000Z\r\n" +
		"DTSTART:20260101T000000Z\r\nDURATION:PT13H\r\nRRULE:FREQ=DAILY\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "busy.ics"), []byte(busy), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startMCP(t, "--set=calendar.files="+folder, "--set=owner.zone=UTC", "--set=calendar.accept=true", "--set=calendar.strangers=true")
	found := s.call("mesh_find_agents", map[string]any{"query": "Sarah"})
	sarah := found["agents"].([]any)[0].(map[string]any)["agent"]
	sent := s.call("mesh_schedule", map[string]any{"agent": sarah, "title": "Coffee", "duration": "45m"})
	offered, _ := sent["offered"].([]any)
	if sent["status"] != "delivered" || len(offered) == 0 { // Sarah answers later
		t.Fatalf("sent = %v", sent)
	}
	wrong, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "mesh_schedule", Arguments: map[string]any{"agent": sarah, "title": "x", "duration": "45m", "window": "tomorrow"}})
	if text, _ := json.Marshal(wrong); err != nil || !wrong.IsError || !goldentest.Says(t, "a wrong window", string(text)) {
		t.Errorf("a wrong window: %s, %v", text, err)
	}
	for _, at := range offered {
		if from, err := time.Parse(time.RFC3339, at.(string)); err != nil || from.Before(time.Now()) || from.UTC().Hour() < 13 {
			t.Errorf("%v is offered: %v", at, err)
		}
	}
	item := s.awaitItem()
	var proposal struct {
		Event struct {
			Title string
			Times []any `json:"proposed_times"`
		}
	}
	if err := json.Unmarshal(item.Payload, &proposal); err != nil || item.Intent != wire.Schedule || proposal.Event.Title != "Coffee" || !slices.Equal(proposal.Event.Times, offered) {
		t.Fatalf("Sarah got %s %s, %v", item.Intent, item.Payload, err)
	}
	mustRun(t, s.theirs, "reply", item.ID, fmt.Sprintf(`{"action":"accept","selected_time":%q}`, offered[0]), "--wait")
	view, err := daemon.Fetch(t.Context(), ownerClient(t, s.mine), owner.Call[daemon.CalendarView]{Method: "GET", Path: "calendar"})
	if err != nil || len(view.Agreed) != 1 || view.Agreed[0].Title != "Coffee" || view.Agreed[0].Start.Format(time.RFC3339) != offered[0] {
		t.Errorf("calendar = %+v, %v", view.Agreed, err)
	}
}

// TestMCPSession is a session of an agent as a process of its own: it finds an agent, sends, waits until the owner has
// approved on the page, and reads the reply, in at most 6 calls and 16,000 bytes.
func TestMCPSession(t *testing.T) {
	const yes = "Yes, at one."
	t.Parallel()
	s := startMCP(t, "--set=owner_api.listen=127.0.0.1:0", "--set=outgoing.mode=approval")
	call := s.call
	found := call("mesh_find_agents", map[string]any{"query": "Sarah"})
	agents := found["agents"].([]any)
	if len(agents) != 1 {
		t.Fatalf("found = %v", found)
	}
	sent := call("mesh_send", map[string]any{"to": agents[0].(map[string]any)["agent"], "text": "Lunch on Tuesday?"})
	if sent["status"] != "waits_for_owner" {
		t.Fatalf("sent = %v", sent)
	}
	approveOnPage(t, s.me.info.OwnerAPI, s.mine, sent["question"].(string))
	decided := call("mesh_ask_owner", map[string]any{"question": sent["question"], "wait_seconds": 20})
	if decided["state"] != "approved" {
		t.Fatalf("decided = %v", decided)
	}
	mustRun(t, s.theirs, "reply", s.awaitItem().ID, yes)
	news := call("mesh_wait", map[string]any{"seconds": 25})
	read := call("mesh_read", map[string]any{"conversation": sent["conversation"]})
	if all, _ := json.Marshal(read); !strings.Contains(string(all), `"untrusted_text":"`+yes+`"`) {
		t.Errorf("wait = %v, read = %s", news, all)
	}
	if s.calls > 6 || s.size > 16_000 {
		t.Errorf("the session took %d calls and %d bytes", s.calls, s.size)
	}
	t.Logf("%d calls, %d bytes", s.calls, s.size)
	if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "mesh_approve"}); err == nil {
		t.Error("there is a tool that approves")
	}
}

// TestMCPNews: receipts are new for nobody, and mesh_wait returns each message once, then blocks until the next one.
func TestMCPNews(t *testing.T) {
	t.Parallel()
	s := startMCP(t)
	sarah := s.call("mesh_find_agents", map[string]any{"query": "Sarah"})["agents"].([]any)[0].(map[string]any)["agent"]
	s.call("mesh_send", map[string]any{"to": sarah, "text": "Lunch on Tuesday?"})
	item := s.awaitItem()
	wait := func(seconds int) (texts []string, took time.Duration) {
		began := time.Now()
		for _, i := range s.call("mesh_wait", map[string]any{"seconds": seconds})["items"].([]any) {
			texts = append(texts, i.(map[string]any)["text"].(map[string]any)["untrusted_text"].(string))
		}
		return texts, time.Since(began)
	}
	countNew := func() int {
		status, err := daemon.Fetch(t.Context(), ownerClient(t, s.mine), owner.ShowStatus.Call())
		if err != nil {
			t.Fatal(err)
		}
		return status.Inbox
	}
	for _, receipt := range []string{`{"action":"received"}`, `{"action":"confirmed","status":"ok"}`} {
		mustRun(t, s.theirs, "reply", string(item.Conversation), receipt, "--wait")
		if texts, took := wait(1); len(texts) > 0 || took < time.Second || countNew() != 0 {
			t.Errorf("after %s: %q after %v, %d new", receipt, texts, took, countNew())
		}
	}
	if code := run(t.Context(), []string{"--data", s.mine, "inbox", "wait", "--timeout=1s"}, strings.NewReader(""), io.Discard, io.Discard); code != 75 {
		t.Errorf("inbox wait ends with %d", code)
	}
	for _, text := range []string{"Yes, at one.", "Or at two."} {
		mustRun(t, s.theirs, "reply", string(item.Conversation), text, "--wait")
		if texts, _ := wait(20); !slices.Equal(texts, []string{text}) {
			t.Errorf("wait = %q, want %q", texts, text)
		}
		if texts, took := wait(1); len(texts) > 0 || took < time.Second {
			t.Errorf("%q again after %v", texts, took)
		}
	}
	if n := countNew(); n != 2 {
		t.Errorf("status counts %d new", n)
	}
}

// TestMCPTask: an agent reads a long task of a bridge, which has no conversation, and answers it once and for all.
func TestMCPTask(t *testing.T) {
	const order = "lock the gate"
	t.Parallel()
	s := startMCP(t, "--set=mess.serve=on")
	details := strings.Repeat("water the roses, ", 30) + "and " + order
	mustRun(t, s.theirs, "links", "add", "mess", s.me.info.URL, "--name=garden", "--exchange=home")
	mustRun(t, s.theirs, "mess", "request", "--link=garden", "--id=garden", details)
	news := s.call("mesh_wait", map[string]any{"seconds": 25})
	item := news["items"].([]any)[0].(map[string]any)
	if all, _ := json.Marshal(item); item["conversation"] != "" || strings.Contains(string(all), order) {
		t.Fatalf("the item is %s", all)
	}
	if all, _ := json.Marshal(s.call("mesh_read", map[string]any{"conversation": item["item"]})); !strings.Contains(string(all), "and "+order) {
		t.Errorf("read = %s", all)
	}
	sent := s.call("mesh_reply", map[string]any{"conversation": item["item"], "text": "done", "final": true})
	if sent["status"] != "delivered" || sent["reply"] != nil {
		t.Errorf("the answer: %v", sent)
	}
}

// approveOnPage presses the button of a question on the owner's page.
func approveOnPage(t *testing.T, base, data, ask string) {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(data, "owner.token"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	do := func(method, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, base+"/owner/page/approvals/"+ask, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	status, page := do("GET", "")
	hash := regexp.MustCompile(`name="hash" value="([0-9a-f]+)"`).FindStringSubmatch(page)
	if status != 200 || hash == nil {
		t.Fatalf("page: %d %s", status, page)
	}
	if status, page := do("POST", url.Values{"choice": {"approve"}, "hash": {hash[1]}}.Encode()); status != http.StatusSeeOther {
		t.Fatalf("approve: %d %s", status, page)
	}
}

// TestMCPOverHTTP: /mcp and the URLs of contacts answer only the agent's token, with the tools of its door.
func TestMCPOverHTTP(t *testing.T) {
	t.Parallel()
	base, token, own := serveMCP(t)
	for name, tt := range map[string]struct {
		path, token, origin string
		want                int
		answer              string
	}{
		"agent's token": {"/mcp", token, "", 200, `"protocolVersion":"2025-11-25"`}, "no token": {"/mcp", "", "", 401, ""},
		"wrong token": {"/mcp", token + "x", "", 401, ""}, "owner's token": {"/mcp", own, "", 404, ""}, "another origin": {"/mcp", token, "https://evil.example", 403, ""},
		"a contact": {"/a2a/sarah", token, "", 200, `"METHOD_NOT_FOUND"`}, "a contact without a token": {"/a2a/sarah", "", "", 401, ""},
		"a contact with the owner's token": {"/a2a/sarah", own, "", 404, ""}, "a slash": {"/mcp/", token, "", 200, `"protocolVersion":"2025-11-25"`},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", base+tt.path, strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if tt.token != "" {
			r.Header.Set("Authorization", "bearer "+tt.token)
		}
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.want || !strings.Contains(string(body), tt.answer) {
			t.Errorf("%s: %d %s, want %d", name, resp.StatusCode, body, tt.want)
		}
	}
}

// serveMCP starts a serve with a token for the agent. It returns the URL of the owner listener and both tokens.
func serveMCP(t *testing.T) (base, token, own string) {
	t.Helper()
	home := t.TempDir()
	data := filepath.Join(home, "data")
	mustRun(t, data, "init")
	s := mustServe(t, data, "--set=owner_api.listen=127.0.0.1:0", "--set=agent_door.token_file="+filepath.Join(home, "agent.token"))
	for _, f := range []struct {
		path string
		into *string
	}{{filepath.Join(home, "agent.token"), &token}, {filepath.Join(data, "owner.token"), &own}} {
		text, err := os.ReadFile(f.path)
		if err != nil {
			t.Fatal(err)
		}
		*f.into = strings.TrimSpace(string(text))
	}
	return s.info.OwnerAPI, token, own
}

func runKit(t *testing.T, target string, args ...string) string {
	t.Helper()
	kit := filepath.Join(os.Getenv(kitVariable), "node_modules")
	cmd := exec.CommandContext(t.Context(), filepath.Join(kit, ".bin", "node"),
		append([]string{filepath.Join(kit, "@modelcontextprotocol", "conformance", "dist", "index.js"), "server", "--url", target}, args...)...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if len(out) == 0 {
		t.Fatalf("the kit: %v", err)
	}
	return string(out)
}

// fixtureFree lists the scenarios that run against any server, because they do not call the kit's own tools.
var fixtureFree = strings.Fields(`
	tools-list server-sse-multiple-streams resources-list sep-2164-resource-not-found prompts-list dns-rebinding-protection caching
	input-required-result-missing-input-response input-required-result-unsupported-methods input-required-result-ignore-extra-params
	input-required-result-validate-input http-header-validation
`)

// checkKit checks that the named scenarios passed, or every scored scenario if names is empty.
func checkKit(t *testing.T, output string, names []string) {
	t.Helper()
	_, summary, ok := strings.Cut(output, "=== SUMMARY ===")
	summary, unscored, _ := strings.Cut(summary, "Not scored for")
	passed := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^(✓|✗) ([a-z0-9-]+): (\d+) passed`).FindAllStringSubmatch(summary, -1) {
		passed[line[2]] = line[1] == "✓"
	}
	if len(names) == 0 {
		for name := range passed {
			if !strings.Contains(unscored, " "+name+" (") {
				names = append(names, name)
			}
		}
		if len(names) != 37 {
			t.Errorf("the kit scored %d scenarios, want 37", len(names))
		}
	}
	if !ok {
		t.Fatalf("the kit printed no summary:\n%s", output)
	}
	for _, name := range names {
		if !passed[name] {
			t.Errorf("%s did not pass", name)
		}
	}
	if t.Failed() {
		t.Log(output)
	}
	t.Logf("%d scenarios of the kit passed", len(names))
}

// TestMCPConformance runs the scenarios of the kit that need no fixtures against a running serve.
func TestMCPConformance(t *testing.T) {
	if os.Getenv(kitVariable) == "" {
		t.Skip("set " + kitVariable + " to run the conformance kit")
	}
	base, token, _ := serveMCP(t)
	target, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // the kit sends no token
		r.SetURL(target)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+token)
	}})
	t.Cleanup(proxy.Close)
	checkKit(t, runKit(t, proxy.URL+"/mcp", "--requirements", "2026-07-28"), fixtureFree)
}

// TestMCPConformanceFixtures runs all scenarios of 2026-07-28 against a program with the constructor and the handler
// of the shipped server. Its tools are the kit's fixtures, which the SDK in the module cache has.
func TestMCPConformanceFixtures(t *testing.T) {
	if os.Getenv(kitVariable) == "" {
		t.Skip("set " + kitVariable + " to run the conformance kit")
	}
	dir := t.TempDir()
	found, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/modelcontextprotocol/go-sdk").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(found)), "conformance", "everything-server", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	for _, r := range []struct{ from, to string }{
		{`server := mcp.NewServer\((?s:.*?), opts\)\n`, "server := agentmesh.NewServer(\"1.0.0\", opts, func(server *mcp.Server) {\n"},
		{`registerPrompts\(server\)\n\n`, "registerPrompts(server)\n\t})\n\n"},
		{`handler := mcp.NewStreamableHTTPHandler\((?s:.*?)Stateless: \*stateless\}\)\n`, "_ = *stateless\nhandler := agentmesh.Handler(server, nil)\n"},
		{`import \(\n`, "import (\n\tagentmesh \"github.com/agentmesh/agentmesh/node/owner/mcp\"\n"},
	} {
		form := regexp.MustCompile(r.from)
		if len(form.FindAllString(text, -1)) != 1 {
			t.Fatalf("the fixtures of the SDK have another form: %s", r.from)
		}
		text = form.ReplaceAllLiteralString(text, r.to)
	}
	main := filepath.Join(dir, "main.go")
	if err := os.WriteFile(main, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	overlay, _ := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "cmd", "mcpfixtures", "main.go"): main}})
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "fixtures")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "./cmd/mcpfixtures")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	address := freeAddress(t)
	server := exec.Command(program, "-http", address)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	checkKit(t, runKit(t, fmt.Sprintf("http://%s/mcp", address), "--requirements", "2026-07-28"), nil)
}

// TestAgentsPage: each client of docs/agents.md gets the tools in three steps, from a serve with default settings.
func TestAgentsPage(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	env := []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	if err := os.Mkdir(filepath.Join(home, ".config"), 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := startServe(filepath.Join(home, ".config", "agentmesh"), nil, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	commands := blocks(t, "docs/agents.md", "<!-- run by TestAgentsPage -->\n```sh")
	if len(commands) != 4 {
		t.Fatalf("%d clients, want 4", len(commands))
	}
	for _, line := range commands {
		var argv []string
		if _, after, ok := strings.Cut(strings.TrimSpace(line), " -- "); ok {
			argv = strings.Fields(after)
		} else if found := regexp.MustCompile(`\{.*\}`).FindString(line); found != "" {
			var file struct {
				MCPServers map[string]struct {
					Command string
					Args    []string
				}
			}
			if err := json.Unmarshal([]byte(found), &file); err != nil {
				t.Fatal(err)
			}
			argv = append([]string{file.MCPServers["agentmesh"].Command}, file.MCPServers["agentmesh"].Args...)
		} else {
			fields := strings.Fields(line)
			for i, f := range fields[:len(fields)-1] {
				if f == "--command" || f == "--arg" {
					argv = append(argv, fields[i+1])
				}
			}
		}
		if len(argv) < 2 || argv[0] != "agentmesh" {
			t.Fatalf("%q starts %q", line, argv)
		}
		cmd := exec.Command(agentmeshBinary(os.Environ()), argv[1:]...)
		cmd.Env = env
		s, err := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), &sdk.CommandTransport{Command: cmd}, nil)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		result, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "mesh_whoami"})
		if err != nil || result.IsError {
			t.Errorf("%q: %v %+v", line, err, result)
		}
		s.Close()
	}
}

// TestWakeUp plays the hook of docs/agents.md with a program in place of claude: the agent is started for a message,
// its answer goes to the sender, and no text of the message is among its arguments.
func TestWakeUp(t *testing.T) {
	const awake = "I am awake"
	const words = "wake up $(touch x)"
	t.Parallel()
	scripts := blocks(t, "docs/agents.md", "<!-- run by TestWakeUp -->\n```sh")
	if len(scripts) != 1 {
		t.Fatalf("%d scripts", len(scripts))
	}
	home := t.TempDir()
	claude := filepath.Join(home, "claude")
	for path, text := range map[string]string{
		claude: "#!/bin/sh\nprintf '%s\\n' \"$@\" > " + home + "/args\ncat > " + home + "/input\n" +
			`echo '{"payload":{"action":"deliver","message":{"body":"` + awake + `"}}}'` + "\n",
		filepath.Join(home, "wake.sh"): strings.Replace(scripts[0], "exec claude ", "exec "+claude+" ", 1),
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	theirs, mine := filepath.Join(home, "theirs"), filepath.Join(home, "mine")
	mustRun(t, theirs, "init")
	hub := mustServe(t, theirs, "--set=access.mode=open", `--set=hooks=[{intent: mesh.message, exec: ["`+filepath.Join(home, "wake.sh")+`"]}]`)
	mustRun(t, mine, "init")
	mustServe(t, mine, "--roles=node", "--directory="+hub.info.Directory)
	if err := hub.awaitListing(); err != nil {
		t.Fatal(err)
	}
	out, err := agentmeshAt(mine, "send", string(hub.info.AgentID), words, "--wait").CombinedOutput()
	if err != nil || !strings.Contains(string(out), awake) {
		t.Errorf("send: %v %s", err, out)
	}
	args, err := os.ReadFile(filepath.Join(home, "args"))
	if err != nil || strings.Contains(string(args), "wake up") || !strings.Contains(string(args), "mcp__agentmesh") {
		t.Errorf("arguments = %q, %v", args, err)
	}
	if input, err := os.ReadFile(filepath.Join(home, "input")); err != nil || !strings.Contains(string(input), words) {
		t.Errorf("input = %q, %v", input, err)
	}
}
