package gateway

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// newFolder writes a drop-in folder and returns the path of its space.yaml.
func newFolder(t *testing.T, yaml string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir) // paths of output logs are relative to it
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("space.yaml", []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "space.yaml")
}

func quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

const demoSpace = `
space: {id: demo, name: Demo, description: a space of the reference}
participants:
  human:
    type: local
    tokens: [literal-token]
    fifo: true
    capabilities: ["*"]
  from-file:
    command: npx
    args: [-y, agent]
    env: {A: b}
    capabilities:
      - chat
      - kind: mcp/proposal
        payload: {method: "tools/*", n: 0x10, big: 12345678901234567890}
  by-env:
    capabilities: [{kind: chat}]
  watcher:
    output_log: ./logs/watcher.log
    auto_connect: true
  late:
    output_log: logs/late/late.log
defaults:
  capabilities: [{kind: mcp/response}, {kind: chat, to: [human]}]
gateway_logging: {enabled: true}
`

// start runs a drop-in gateway.
func (d *DropIn) start(t *testing.T) *mewtest.Rig[*Gateway] {
	t.Helper()
	return startWith(t, d.Dir, Config{
		Spaces: []SpaceConfig{d.Space}, AnyPath: true, Journal: d.Journal(), KeepToken: d.KeepToken, Reload: d.Reload,
	})
}

func read(t *testing.T, file string, env map[string]string) *DropIn {
	t.Helper()
	d, err := ReadDropIn(file, func(name string) string { return env[name] }, quietLog())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestTokenPlaces: tokens from all three places admit. A participant without a token gets one, in a file that nobody
// else can read (MEW-D5).
func TestTokenPlaces(t *testing.T) {
	file := newFolder(t, demoSpace, map[string]string{".mew/tokens/from-file.token": " file-token \n"})
	env := map[string]string{"MEW_TOKEN_BY_ENV": "env-token"}
	d := read(t, file, env)
	if filepath.Base(d.Dir) != ".mew" {
		t.Errorf("state is in %s, want the .mew folder", d.Dir)
	}
	made, err := os.ReadFile(".mew/tokens/human.token")
	if err != nil || len(strings.TrimSpace(string(made))) != 43 {
		t.Errorf("the token of human is %q, %v", made, err)
	}
	if _, err := os.Stat(".mew/tokens/by-env.token"); !os.IsNotExist(err) {
		t.Errorf("a participant with a variable got a file: %v", err)
	}
	for name, mode := range map[string]fs.FileMode{".mew/tokens/human.token": 0o600, ".mew/tokens/.gitignore": 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if ignore, _ := os.ReadFile(".mew/tokens/.gitignore"); string(ignore) != "*\n!.gitignore\n" {
		t.Errorf(".gitignore says %q", ignore)
	}
	r := d.start(t)
	for _, token := range []string{"literal-token", strings.TrimSpace(string(made)), "file-token", "env-token"} {
		r.Join(token)
	}
	// The gateway finds a token that appears while it runs, at most once a second.
	if err := os.WriteFile(".mew/tokens/by-env.token", []byte("new-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.G.mu.Lock()
	r.G.reloaded = time.Time{}
	r.G.mu.Unlock()
	r.Join("new-token")
	r.Stop()
	if again, _ := os.ReadFile(".mew/tokens/human.token"); !bytes.Equal(again, made) {
		t.Error("the token was replaced")
	}
}

func TestSpaceFile(t *testing.T) {
	d := read(t, newFolder(t, demoSpace, nil), nil)
	byName := map[string]Participant{}
	for _, p := range d.Space.Participants {
		byName[p.Name] = p
	}
	c := byName["from-file"].Capabilities
	if len(c) != 2 || string(c[0].Value().JSON()) != `{"kind":"chat"}` || string(c[1].Value().JSON()) != `{"kind":"mcp/proposal","payload":{"method":"tools/*","n":16,"big":12345678901234567890}}` {
		t.Errorf("capabilities %v", c)
	}
	if byName["watcher"].Capabilities != nil || len(d.Space.Defaults) != 2 || !d.Space.DropIn {
		t.Errorf("defaults %v for %v", d.Space.Defaults, byName["watcher"])
	}
	if d.Dir != filepath.Dir(filepath.Join(d.Dir, "space.yaml")) || !d.Envelopes || !d.Decisions {
		t.Errorf("%+v", d)
	}
	for name, bad := range map[string]string{
		"no id":         `space: {}`,
		"broken":        "space: {id: a\nparticipants",
		"alias":         "space: {id: a}\nx: &x 1\ny: *x",
		"merge":         "space: {id: a}\nparticipants: {<<: {a: {}}}",
		"twice":         "space: {id: a}\nparticipants: {a: {}, a: {}}",
		"bad name":      "space: {id: a}\nparticipants: {'../x': {}}",
		"bad token":     "space: {id: a}\nparticipants: {x: {tokens: [1]}}",
		"token text":    "space: {id: a}\nparticipants: {x: {tokens: secret}}",
		"auto connect":  "space: {id: a}\nparticipants: {x: {auto_connect: 'true'}}",
		"output log":    "space: {id: a}\nparticipants: {x: {output_log: [a]}}",
		"bad pattern":   "space: {id: a}\nparticipants: {x: {capabilities: [{kind: 1}]}}",
		"deep":          "space: {id: a}\nx: " + strings.Repeat("[", 50) + strings.Repeat("]", 50),
		"tag":           "space: {id: a}\nx: !!binary aGk=",
		"empty":         "",
		"subset":        "space: {id: a}\ninvite_subset: maybe",
		"complex key":   "space: {id: a}\n? [a]\n: b",
		"too many keys": "space: {id: a}\nx: {" + manyKeys(6000) + "}",
	} {
		if d, err := ReadDropIn(newFolder(t, bad, nil), func(string) string { return "" }, quietLog()); err == nil {
			t.Errorf("%s: read as %+v", name, d.Space)
		}
	}
	empty := read(t, newFolder(t, "space: {id: a}\nparticipants: {x: {tokens: , auto_connect: , output_log: }}", nil), nil)
	if p := empty.Space.Participants[0]; len(p.Tokens) != 1 || p.AutoConnect || p.OutputLog != "" {
		t.Errorf("empty members: %+v", p)
	}
	twice := read(t, newFolder(t, "space: {id: a}\nparticipants: {x: {tokens: [same]}, y: {tokens: [same]}}", nil), nil)
	if _, err := New(t.Context(), Config{Spaces: []SpaceConfig{twice.Space}, Records: newQuietSpace(t, newLabConfig(t)).gatewayCfg.Records}); err == nil {
		t.Error("one token admits two participants")
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strconv.Itoa(i) + ": 1, ")
	}
	return b.String()
}

func TestLogSwitches(t *testing.T) {
	for _, tt := range []struct {
		yaml                 string
		env                  map[string]string
		envelopes, decisions bool
	}{
		{"", nil, true, true},
		{"gateway_logging: {enabled: false}", nil, false, false},
		{"gateway_logging: {enabled: false}", map[string]string{"GATEWAY_LOGGING": "on"}, true, true},
		{"gateway_logging: {enabled: true, envelope_history: {enabled: false}}", nil, false, true},
		{"gateway_logging: {capability_decisions: {enabled: false}}", nil, true, false},
		{"", map[string]string{"ENVELOPE_HISTORY": "no"}, false, true},
		{"", map[string]string{"CAPABILITY_DECISIONS": "0"}, true, false},
		{"", map[string]string{"GATEWAY_LOGGING": "off", "ENVELOPE_HISTORY": "1"}, false, false},
	} {
		d := read(t, newFolder(t, "space: {id: a}\n"+tt.yaml, nil), tt.env)
		if d.Envelopes != tt.envelopes || d.Decisions != tt.decisions {
			t.Errorf("%q with %v: %t, %t", tt.yaml, tt.env, d.Envelopes, d.Decisions)
		}
	}
}

// waitForLine waits until a log has a line with the mark, and returns its lines. Scripts wait 50 ms for a line
// (MEW-D10).
func waitForLine(t *testing.T, file, mark string) []string {
	t.Helper()
	for start := time.Now(); ; {
		data, _ := os.ReadFile(file)
		if strings.Contains(string(data), mark) {
			return strings.Split(strings.TrimSpace(string(data)), "\n")
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("%s never got %s: %s", file, mark, data)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestOutputLog: a virtual participant is present from the start without a presence message, gets a welcome, and its
// log holds everything that was delivered to it (MEW-D6).
func TestOutputLog(t *testing.T) {
	r := read(t, newFolder(t, demoSpace, nil), nil).start(t)
	human := r.Open("/", "")
	human.Send(`{"type":"join","space":"demo","token":"literal-token","participantId":"client-1"}`)
	w := human.Want("system/welcome")
	if list := mewtest.Payload(w, "participants"); list.Len() != 1 || list.At(0).GetStr("id") != "watcher" {
		t.Errorf("participants %s", list.JSON())
	}
	human.Send(`{"id":"c-1","kind":"chat","payload":{"text":"for the log"}}`)
	got := waitForLine(t, "logs/watcher.log", `"c-1"`)
	for i, kind := range []string{"system/welcome", "system/presence", "chat"} {
		if v := mewtest.Parse(t, got[i]); v.GetStr("kind") != kind || string(v.JSON()) != got[i] {
			t.Errorf("line %d is %s, want a compact %s", i, got[i], kind)
		}
	}
	if _, err := os.Stat("logs/late/late.log"); !os.IsNotExist(err) {
		t.Errorf("a log that is not connected exists: %v", err)
	}
	token, _ := os.ReadFile("tokens/late.token")
	if status, body := r.Post("late", strings.TrimSpace(string(token)), `{"id":"l-1","kind":"chat","to":["human"],"payload":{}}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	first := mewtest.Parse(t, waitForLine(t, "logs/late/late.log", `"l-1"`)[0])
	if first.GetStr("kind") != "system/welcome" {
		t.Errorf("the late log begins with %s", first.JSON())
	}
	if e := human.Until("chat"); e.GetStr("id") == "c-1" {
		e = human.Until("chat")
		if string(mewtest.Get(e, "to").JSON()) != `["client-1"]` {
			t.Errorf("to is not resolved: %s", e.JSON())
		}
	}
	// A refusal reaches the log too (MEW-H2).
	r.Post("late", strings.TrimSpace(string(token)), `{"id":"l-2","kind":"mcp/request"}`)
	waitForLine(t, "logs/late/late.log", "capability_violation")
}

// TestJournal: the two JSONL logs have their keys in order, no blanks and no tokens, and one line for each recipient
// (MEW-D8, MEW-D9).
func TestJournal(t *testing.T) {
	r := read(t, newFolder(t, demoSpace, nil), nil).start(t)
	human := r.Join("literal-token")
	human.Send(`{"id":"c-1","ts":"2025-01-01T00:00:00Z","kind":"chat","correlation_id":"x","payload":{"text":"hi"}}`,
		`{"id":"bad","kind":"system/x"}`, `{"id":"i-1","kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":["chat"]}}`)
	token := mewtest.Text(mewtest.Payload(human.Until("space/invite-ack"), "token"))
	r.Post("human", "literal-token", `{"type":"join","token":"literal-token"}`)
	r.Post("human", "literal-token", `{"kind":"system/join","payload":{"token":"literal-token"}}`)
	human.Fence()
	r.Stop()
	history := waitForLine(t, "logs/envelope-history.jsonl", `"invited"`)
	envelope := `{"protocol":"mew/v0.4","from":"human","id":"c-1","ts":"2025-01-01T00:00:00Z","kind":"chat","correlation_id":["x"],"payload":{"text":"hi"}}`
	tail := `,"space_id":"demo","direction":"`
	want := []string{
		`,"event":"received","id":"c-1","envelope":` + envelope + `,"participant":"human"` + tail + `inbound","transport":"websocket"}`,
		`,"event":"delivered","id":"c-1","envelope":` + envelope + `,"participant":"human"` + tail + `outbound","transport":"websocket"}`,
		`,"event":"delivered","id":"c-1","envelope":` + envelope + `,"participant":"watcher"` + tail + `outbound","transport":"virtual"}`,
		`,"event":"rejected","id":"bad","envelope":{"id":"bad","kind":"system/x"},"participant":"human"` + tail + `inbound","transport":"websocket","metadata":{"reason":"invalid_request"}}`,
		`"token":"[redacted]"`,
	}
	for _, w := range want {
		found := 0
		for _, line := range history {
			if strings.Contains(line, w) && strings.HasPrefix(line, `{"timestamp":"20`) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d lines with %s", found, w)
		}
	}
	decisions := waitForLine(t, "logs/capability-decisions.jsonl", `"i-1"`)
	for _, w := range []string{
		`,"event":"capability_check","envelope_id":"c-1","participant":"human","space_id":"demo","result":"allowed","required_capability":"chat","matched_capability":{"kind":"*"},"matched_source":"static","granted_capabilities":[{"kind":"*"},{"id":"mcp-response","kind":"mcp/response"}],"metadata":{"source":"gateway","transport":"websocket","correlation_id":["x"]}}`,
	} {
		if !strings.Contains(decisions[0], w) {
			t.Errorf("got %s, want %s", decisions[0], w)
		}
	}
	if whole := strings.Join(append(history, decisions...), "\n"); strings.Contains(whole, token) || strings.Contains(whole, "literal-token") {
		t.Error("a log contains a token")
	}
	files, _ := filepath.Glob("tokens/*.token")
	if kept, _ := os.ReadFile("tokens/guest.token"); strings.TrimSpace(string(kept)) != token || len(files) != 6 {
		t.Errorf("the token of the guest is not where the CLI looks: %q, %v", kept, files)
	}
}

// TestLineFile: a full queue drops lines and the file says how many; a full file is rotated (MEW-D10).
func TestLineFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "x.jsonl")
	f := newLineFile(path, quietLog())
	f.maxLines, f.appendDropped = 3, appendDropped
	for i := range 5 {
		f.putLine([]byte(`{"n":` + strconv.Itoa(i) + `}`))
	}
	f.flush()
	data, _ := os.ReadFile(path)
	if got := string(data); !strings.HasPrefix(got, "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n{\"timestamp\"") || !strings.Contains(got, `"event":"dropped","metadata":{"lines":2}}`) {
		t.Errorf("the file holds %s", got)
	}
	f.rotateSize, f.maxLines = 100, 1000
	for i := range 30 {
		f.putLine([]byte(`{"line":` + strconv.Itoa(i) + `,"text":"` + strings.Repeat("x", 100) + `"}`))
		f.flush()
	}
	f.close()
	aside, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "x.*.jsonl"))
	if len(aside) != keepRotated {
		t.Errorf("%d rotated files exist, want %d", len(aside), keepRotated)
	}
	newest, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "x.1.jsonl"))
	if !strings.Contains(string(newest), `"line":29`) {
		t.Errorf("the newest rotated file holds %s", newest)
	}
}

// TestDeadPatternIsWarnedAbout: the operator gets a warning about every pattern that never matches, also in a payload.
func TestDeadPatternIsWarnedAbout(t *testing.T) {
	for text, want := range map[string]bool{
		`{"kind":"/(/"}`: true,
		`{"kind":"mcp/request","payload":{"method":"/a{999}/"}}`:                                  true,
		`{"kind":"mcp/request","payload":{"params":{"name":["read","/[/"]}}}`:                     true,
		`{"kind":"mcp/request","payload":{"$.params[?(@.x)]":"y"}}`:                               true,
		`{"kind":"mcp/request","payload":{"` + strings.Repeat("k", 257) + `":"y"}}`:               true,
		`{"kind":"mcp/request","payload":{"method":"tools/*","params":{"name":"/^read/","n":1}}}`: false,
		`{"kind":["chat","!mcp/*"]}`:                                                              false,
	} {
		var log watchedLog
		g := &Gateway{log: slog.New(slog.NewTextHandler(&log, nil))}
		g.warnOperator(&Space{cfg: SpaceConfig{ID: "lab"}}, "alice", mewtest.Cap(t, text))
		if got := strings.Contains(log.String(), "never matches"); got != want {
			t.Errorf("%s: warned %v, want %v", text, got, want)
		}
	}
}
