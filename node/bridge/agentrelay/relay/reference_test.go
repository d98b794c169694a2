package relay

import (
	"os"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestReferenceClient: the reference's command line client works unchanged. The test replays its exchanges frame by
// frame.
func TestReferenceClient(t *testing.T) {
	data, err := os.ReadFile("testdata/reference-cli.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := newTestRelay(t, Config{})
	listener := s.join("listener")
	var alice *agent
	token, steps := "", 0
	var answer wire.Value
	for line := range strings.Lines(string(data)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "register":
			status, body := s.ask("POST", "/register", rest)
			if status != 200 {
				t.Fatalf("register %s: %d %s", rest, status, body)
			}
			answer = read(t, string(body))
			if answer.GetStr("agent_id") == "alice" {
				token = answer.GetStr("token")
			}
		case "connect":
			target := "ws" + strings.TrimPrefix(s.url, "http") + "/arc?token=" + token
			conn, err := websocket.Dial(t.Context(), dialer, target, websocket.Options{})
			if err != nil {
				t.Fatal(err)
			}
			alice, answer = s.listen("alice", conn), wire.Value{}
		case ">":
			alice.send(strings.ReplaceAll(rest, "*token", token))
		case "hears":
			listener.send(rest)
		case "<":
			got := answer
			if got.IsNull() {
				got = alice.next()
			}
			answer = wire.Value{}
			like(t, got, read(t, rest), "$")
		case "heard":
			like(t, listener.next(), read(t, rest), "$")
		default:
			continue
		}
		steps++
	}
	if steps < 15 {
		t.Errorf("%d steps were replayed", steps)
	}
}

func read(t *testing.T, s string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(s), frame.MaxDepth, frame.MaxValues)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return v
}

// like compares a value with the wanted one, in which "*" stands for anything. An array ["*"] means itself: everybody.
func like(t *testing.T, got, want wire.Value, at string) {
	t.Helper()
	if s, ok := want.Str(); ok && s == "*" && !strings.HasSuffix(at, "]") {
		if got.IsNull() {
			t.Errorf("%s is missing", at)
		}
		return
	}
	if got.Kind() != want.Kind() || got.Len() != want.Len() {
		t.Errorf("%s = %s, want %s", at, got.JSON(), want.JSON())
		return
	}
	switch want.Kind() {
	case wire.Object:
		for _, m := range want.Members() {
			v, ok := got.Get(m.Key)
			if !ok {
				t.Errorf("%s.%s is missing in %s", at, m.Key, got.JSON())
				continue
			}
			like(t, v, m.Value, at+"."+m.Key)
		}
	case wire.Array:
		for i := range want.Len() {
			like(t, got.At(i), want.At(i), at+"[]")
		}
	default:
		if string(got.JSON()) != string(want.JSON()) {
			t.Errorf("%s = %s, want %s", at, got.JSON(), want.JSON())
		}
	}
}
