package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestExchanges plays what clients of the reference send and what they wait for, from testdata/exchanges, which was
// written by hand after their source. The commands are: connect NAME PATH [BEARER]; close NAME; http METHOD PATH BEARER BODY; NAME> a message to send; NAME< a
// message that must arrive: a stream frame exactly, or an envelope with at least these members. Other messages may come
// before, but no errors.
func TestExchanges(t *testing.T) {
	files, err := filepath.Glob("testdata/exchanges/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no exchanges: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			replay(t, string(data))
		})
	}
}

func replay(t *testing.T, script string) {
	agent := mewtest.Caps(t, "chat", "mcp/proposal", "stream/*", "capability/grant-ack", "participant/status")
	r := startWith(t, t.TempDir(), Config{AnyPath: true, Spaces: []SpaceConfig{{ID: "demo", DropIn: true, Participants: []Participant{
		{Name: "human", Tokens: []string{"human-token"}, Capabilities: mewtest.Caps(t, "*")},
		{Name: "agent", Tokens: []string{"agent-token"}, Capabilities: agent},
	}}}})
	players := map[string]*mewtest.Player{}
	answered := ""
	for n, line := range strings.Split(script, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		name := strings.TrimRight(word, "<>")
		switch {
		case line == "" || line[0] == '#':
		case word == "connect":
			f := append(strings.Fields(rest), "")
			players[f[0]] = r.Open(f[1], f[2])
		case word == "close":
			players[rest].Quit()
		case word == "http":
			f := strings.SplitN(rest, " ", 4)
			status, body := r.Call(f[0], f[1], strings.Trim(f[2], "-"), strings.Trim(f[3], "-"))
			answered = fmt.Sprintf("%d %s", status, body)
		case word == "http<":
			status, want, _ := strings.Cut(rest, " ")
			got, body, _ := strings.Cut(answered, " ")
			if got != status || !within(mewtest.Parse(t, want), mewtest.Parse(t, body)) {
				t.Errorf("line %d: got %s, want %s", n+1, answered, rest)
			}
		case strings.HasSuffix(word, ">"):
			players[name].Send(rest)
		default:
			expect(t, n+1, players[name], rest)
		}
	}
}

// expect reads the messages of a player until the wanted one arrives.
func expect(t *testing.T, line int, p *mewtest.Player, want string) {
	t.Helper()
	for {
		_, got := p.Next()
		if want[0] == '#' || got[0] == '#' {
			if got == want {
				return
			}
		} else if within(mewtest.Parse(t, want), mewtest.Parse(t, got)) {
			return
		}
		if strings.Contains(got, `"kind":"system/error"`) {
			t.Fatalf("line %d: got %s, want %s", line, got, want)
		}
	}
}

// within reports whether v has at least the members and elements of want.
func within(want, v wire.Value) bool {
	switch want.Kind() {
	case wire.Object:
		for _, m := range want.Members() {
			have, ok := v.Get(m.Key)
			if !ok || !within(m.Value, have) {
				return false
			}
		}
		return v.Kind() == wire.Object
	case wire.Array:
		if v.Kind() != wire.Array || v.Len() != want.Len() {
			return false
		}
		for i := range want.Len() {
			if !within(want.At(i), v.At(i)) {
				return false
			}
		}
		return true
	}
	return string(want.JSON()) == string(v.JSON())
}
