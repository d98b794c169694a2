package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/docs/openclaw"
)

// startOpenClaw implements the script command "gateway NAME TOKEN". It starts a stand-in for an OpenClaw gateway with
// one agent, main, and default settings. The stand-in behaves as in the documentation that docs/openclaw/README.md
// names. It sets NAME_URL to the gateway's hook, and appends the message of each run to the file NAME.
func startOpenClaw(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: gateway name token")
	}
	g := &standInGateway{file: ts.MkAbs(args[0]), token: args[1], runs: map[string]string{}}
	server := httptest.NewServer(g)
	ts.Defer(server.Close)
	ts.Setenv(args[0]+"_URL", server.URL+"/hooks/agent")
}

type standInGateway struct {
	file, token string

	mu   sync.Mutex
	runs map[string]string // by idempotency key and request body
}

func (g *standInGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, why string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"ok":false,"error":%q}`, why)
	}
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer {
		token = r.Header.Get("x-openclaw-token")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 256<<10))
	var call struct {
		Message, AgentID, SessionKey, Channel, To string
		Deliver                                   *bool
	}
	switch {
	case r.Method != http.MethodPost:
		refuse(http.StatusMethodNotAllowed, "POST only")
	case r.URL.Query().Has("token"):
		refuse(http.StatusBadRequest, "a token in the query string is refused")
	case token != g.token:
		refuse(http.StatusUnauthorized, "unauthorized")
	case r.URL.Path != "/hooks/agent":
		refuse(http.StatusNotFound, "no such hook")
	case err != nil:
		refuse(http.StatusRequestEntityTooLarge, "too large")
	case json.Unmarshal(body, &call) != nil || strings.TrimSpace(call.Message) == "":
		refuse(http.StatusBadRequest, "message is required")
	case call.AgentID != "" && call.AgentID != "main":
		refuse(http.StatusBadRequest, "agentId names no configured agent")
	case call.SessionKey != "":
		refuse(http.StatusBadRequest, "sessionKey is disabled")
	case (call.Deliver == nil || *call.Deliver) && (call.Channel == "") != (call.To == ""):
		refuse(http.StatusBadRequest, "half a destination")
	default:
		run, err := g.run(r.Header.Get("Idempotency-Key"), string(body), call.Message)
		if err != nil {
			refuse(http.StatusBadGateway, err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"ok":true,"runId":%q}`, run)
	}
}

// run starts a run and returns its id. A repeated request gets the id of its first run.
func (g *standInGateway) run(key, dispatched, message string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	same := key + "\x00" + dispatched
	if run, again := g.runs[same]; again && key != "" && len(key) <= 256 {
		return run, nil
	}
	file, err := os.OpenFile(g.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "%s\n", message); err != nil {
		return "", err
	}
	g.runs[same] = fmt.Sprintf("run_%d", len(g.runs)+1)
	return g.runs[same], nil
}

// TestSkillFrontMatter: the front matter has only fields that a gateway knows, because a gateway silently ignores
// others.
func TestSkillFrontMatter(t *testing.T) {
	_, rest, ok := strings.Cut(string(openclaw.Skill), "---\n")
	head, body, closed := strings.Cut(rest, "\n---\n")
	if !ok || !closed || !strings.HasPrefix(string(openclaw.Skill), "---\n") || len(body) > 20_000 {
		t.Fatal("no front matter, or a skill that is too long to be read")
	}
	type install struct {
		ID      string   `yaml:"id"`
		Kind    string   `yaml:"kind"`
		Module  string   `yaml:"module"`
		Package string   `yaml:"package"`
		Formula string   `yaml:"formula"`
		URL     string   `yaml:"url"`
		Bins    []string `yaml:"bins"`
		Label   string   `yaml:"label"`
	}
	var got struct {
		Name        string `yaml:"name"`
		Description string `yaml:"description"`
		Version     string `yaml:"version"`
		Metadata    struct {
			OpenClaw struct {
				Requires struct {
					Bins []string `yaml:"bins"`
				} `yaml:"requires"`
				Emoji   string    `yaml:"emoji"`
				OS      []string  `yaml:"os"`
				Install []install `yaml:"install"`
			} `yaml:"openclaw"`
		} `yaml:"metadata"`
	}
	dec := yaml.NewDecoder(strings.NewReader(head))
	dec.KnownFields(true)
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "agentmesh" || got.Version == "" || strings.ContainsAny(head, "<>") {
		t.Errorf("name %q, which must be that of the folder, version %q, or angle brackets", got.Name, got.Version)
	}
	if n := len(got.Description); n < 40 || n > 1024 || !strings.Contains(got.Description, "Use it") {
		t.Errorf("the description has %d characters, or does not say when to use the skill", n)
	}
	meta := got.Metadata.OpenClaw
	if !slices.Equal(meta.Requires.Bins, []string{"agentmesh"}) || len(meta.Install) > 0 {
		t.Errorf("requires %v, %d ways to install: none works until a release is published", meta.Requires.Bins, len(meta.Install))
	}
	for _, o := range meta.OS {
		if !slices.Contains([]string{"darwin", "linux", "win32"}, o) {
			t.Errorf("os %q", o)
		}
	}
}

var (
	shBlock  = regexp.MustCompile("(?s)```sh\n(.*?)```")
	variable = regexp.MustCompile(`\$\{?\w+\}?`)
	standIn  = regexp.MustCompile(`\b(?:AGENT|NAME|CONVERSATION|TIME|ITEM|ASK)\b`)
)

// TestSkillIsPlayed: the script skill.txtar runs every command of SKILL.md in order, with variables for the words in
// capitals. The test ignores quotes, whose rules differ.
func TestSkillIsPlayed(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("testdata", "skill.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(script), "--agent-socket data.agent.sock ", "") // what skill install adds
	played := normalizeCommands(variable.ReplaceAllString(text, "X"))
	commands := 0
	for _, block := range shBlock.FindAllStringSubmatch(string(openclaw.Skill), -1) {
		for line := range strings.Lines(block[1]) {
			command := normalizeCommands(standIn.ReplaceAllString(strings.TrimSpace(line), "X"))
			commands++
			at := strings.Index(played, command)
			if at < 0 {
				t.Errorf("SKILL.md: the script does not run %q, or not in this order", strings.TrimSpace(line))
				continue
			}
			played = played[at+len(command):]
		}
	}
	if commands < 11 {
		t.Errorf("SKILL.md has %d commands: this test sees too little", commands)
	}
}

// normalizeCommands removes quotes, whose rules differ, and replaces the times of examples.
func normalizeCommands(text string) string {
	text = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"`).ReplaceAllString(text, `"X"`)
	return strings.NewReplacer("'", "", `"`, "").Replace(text)
}
