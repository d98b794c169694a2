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
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentmesh/agentmesh/docs/openclaw"
)

// gateway NAME TOKEN starts a stand-in for an OpenClaw gateway that behaves as its documentation says, sets NAME_URL to
// its hook, and appends the message of each run to the file NAME.
func gateway(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: gateway name token")
	}
	var mu sync.Mutex
	runs := map[string]string{}
	name := ts.MkAbs(args[0])
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse := func(status int, why string) { http.Error(w, why, status) }
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		var call struct{ Message, Name, AgentID, SessionKey string }
		switch {
		case r.URL.RawQuery != "":
			refuse(http.StatusBadRequest, "a token in the query string is refused")
			return
		case r.Method != http.MethodPost || r.URL.Path != "/hooks/agent":
			refuse(http.StatusNotFound, "no such hook")
			return
		case r.Header.Get("Authorization") != "Bearer "+args[1]:
			refuse(http.StatusUnauthorized, "unauthorized")
			return
		case err != nil || json.Unmarshal(body, &call) != nil || call.Message == "":
			refuse(http.StatusBadRequest, "message is required")
			return
		case call.SessionKey != "":
			refuse(http.StatusBadRequest, "sessionKey is disabled")
			return
		}
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		run, again := runs[key]
		if !again {
			run = fmt.Sprintf("run_%d", len(runs)+1)
			runs[key] = run
			file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err == nil {
				_, err = fmt.Fprintf(file, "%s\n", call.Message)
				file.Close()
			}
			if err != nil {
				refuse(http.StatusInternalServerError, err.Error())
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"ok":true,"runId":%q}`, run)
	}))
	ts.Defer(server.Close)
	ts.Setenv(args[0]+"_URL", server.URL+"/hooks/agent")
}

var (
	shBlock  = regexp.MustCompile("(?s)```sh\n(.*?)```")
	variable = regexp.MustCompile(`\$\{?\w+\}?`)
	standIn  = regexp.MustCompile(`\b(?:AGENT|NAME|CONVERSATION|TIME|ITEM|ASK)\b`)
)

// TestSkillIsPlayed: every command of SKILL.md stands, in its order, in the script that plays it, with variables for the
// words in capitals; quotes aside, which the two write in their own ways.
func TestSkillIsPlayed(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("testdata", "skill.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	played := normal(variable.ReplaceAllString(string(script), "X"))
	commands := 0
	for _, block := range shBlock.FindAllStringSubmatch(string(openclaw.Skill), -1) {
		for line := range strings.Lines(block[1]) {
			command := normal(standIn.ReplaceAllString(strings.TrimSpace(line), "X"))
			commands++
			at := strings.Index(played, command)
			if at < 0 {
				t.Errorf("SKILL.md: %q is not played, or not in this place", strings.TrimSpace(line))
				continue
			}
			played = played[at+len(command):]
		}
	}
	if commands < 15 {
		t.Errorf("SKILL.md has %d commands: this test sees too little", commands)
	}
}

// normal drops quotes, whose rules differ, and the times of an example.
func normal(text string) string {
	text = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"`).ReplaceAllString(text, `"X"`)
	return strings.NewReplacer("'", "", `"`, "").Replace(text)
}
