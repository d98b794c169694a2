package gateway

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestJoinShapes checks the four shapes of a join, as the reference's SDK, its interactive CLI and its templates send
// them (MEW-J1).
func TestJoinShapes(t *testing.T) {
	for _, tt := range []struct {
		name, path, header, join, id string
	}{
		{"a: SDK", "/", "", `{"type":"join","space":"lab","token":"alice-token","participantId":"client-1759310701273-q9i1e5jkg","capabilities":[{"kind":"*"}]}`, "client-1759310701273-q9i1e5jkg"},
		{"a: agent, default space", "/?space=lab", "", `{"type":"join","space":"default","token":"alice-token","participantId":"alice"}`, "alice"},
		{"a: no id", "/any/path", "", `{"type":"join","token":"alice-token"}`, "alice"},
		{"b: interactive CLI", "/", "", `{"kind":"system/join","protocol":"mew/v0.4","id":"j","ts":"2025-01-01T00:00:00Z","payload":{"space":"lab","participant":"alice","token":"alice-token","capabilities":[]}}`, "alice"},
		{"d: participantId", "/", "", `{"kind":"system/join","protocol":"mew/v0.4","id":"j","ts":"2025-01-01T00:00:00Z","payload":{"space":"lab","participantId":"client-2","token":"alice-token"}}`, "client-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := startWith(t, t.TempDir(), Config{Spaces: []SpaceConfig{newLabConfig(t)}, AnyPath: true})
			p := r.Open(tt.path, tt.header)
			p.Send(tt.join)
			w := p.Want("system/welcome")
			if got := mewtest.Text(mewtest.Payload(w, "you", "id")); got != tt.id {
				t.Errorf("you.id = %s, want %s", got, tt.id)
			}
			if to, _ := w.Get("to"); to.Len() != 1 || mewtest.Text(to.At(0)) != tt.id {
				t.Errorf("the welcome is addressed to %s", to.JSON())
			}
			p.Send(`{"kind":"chat","from":"` + tt.id + `","payload":{"text":"hi"}}`)
			if got := p.Want("chat").GetStr("from"); got != tt.id {
				t.Errorf("the echo is from %s", got)
			}
		})
	}
}

// TestHeaderThenJoin: a token in the header admits at once, and a join that follows, shape (c), gets the same welcome
// (MEW-J2).
func TestHeaderThenJoin(t *testing.T) {
	r := start(t, newLabConfig(t))
	bob := r.Join("bob-token")
	p := r.Open("/ws?space=lab", "alice-token")
	p.Want("system/welcome")
	bob.Want("system/presence")
	for _, join := range []string{
		`{"kind":"system/join","protocol":"mew/v0.4","id":"j","ts":"2025-01-01T00:00:00Z","from":"alice","payload":{}}`,
		`{"type":"join","space":"lab","token":"alice-token","participantId":"alice"}`,
	} {
		p.Send(join)
		if got := mewtest.Text(mewtest.Payload(p.Want("system/welcome"), "you", "id")); got != "alice" {
			t.Errorf("after %s you.id = %s", join, got)
		}
	}
	if extra := bob.Fence(); len(extra) > 0 {
		t.Errorf("a repeated join was announced: %s", extra)
	}
	p.Send(`{"type":"join","space":"lab","token":"bob-token","participantId":"bob"}`)
	p.Until("system/error")
	p.AwaitClose(envelope.CloseUnauthorized)
}

func TestJoinRefused(t *testing.T) {
	long := strings.Repeat("x", envelope.MaxName+1)
	for _, tt := range []struct{ name, join, query string }{
		{name: "another space in the URL", join: `{"type":"join","token":"alice-token"}`, query: "?space=other"},
		{name: "another space in the URL, default in the join", join: `{"type":"join","space":"default","token":"alice-token"}`, query: "?space=other"},
		{name: "wrong token", join: `{"type":"join","token":"nobody","participantId":"alice"}`},
		{name: "no token", join: `{"type":"join","participantId":"alice"}`},
		{name: "another space", join: `{"type":"join","space":"other","token":"alice-token"}`},
		{name: "id of another", join: `{"type":"join","token":"alice-token","participantId":"bob"}`},
		{name: "id of the gateway", join: `{"type":"join","token":"alice-token","participantId":"gateway"}`},
		{name: "id of the system", join: `{"type":"join","token":"alice-token","participantId":"system:gateway"}`},
		{name: "id with a slash", join: `{"type":"join","token":"alice-token","participantId":"a/b"}`},
		{name: "id with dots", join: `{"type":"join","token":"alice-token","participantId":"a..b"}`},
		{name: "id with #", join: `{"type":"join","token":"alice-token","participantId":"a#b"}`},
		{name: "id with a control", join: `{"type":"join","token":"alice-token","participantId":"a\u0007b"}`},
		{name: "long id", join: `{"type":"join","token":"alice-token","participantId":"` + long + `"}`},
		{name: "an envelope", join: `{"kind":"chat","payload":{"text":"hi"}}`},
		{name: "no JSON", join: `join`},
		{name: "null", join: `null`},
		{name: "a frame", join: `#stream-1#x`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := start(t, newLabConfig(t)).Open("/ws"+tt.query, "")
			p.Send(tt.join)
			e := p.Want("system/error")
			if got := mewtest.Text(mewtest.Payload(e, "error")); got != "unauthorized" {
				t.Errorf("error = %s, want unauthorized", got)
			}
			p.AwaitClose(envelope.CloseUnauthorized)
		})
	}
}

// TestHeaderRefused: a bearer token that is wrong, or for another space, gets no connection, and a token in the query
// does not count (MEW-J1, MEW-J3).
func TestHeaderRefused(t *testing.T) {
	r := start(t, newLabConfig(t))
	for _, tt := range []struct {
		path, auth string
		status     int
	}{
		{"/ws", "Bearer nobody", 401},
		{"/ws?space=other", "Bearer alice-token", 401},
		{"/ws", "Basic alice-token", 401},
		{"/ws", "Bearer ", 401},
		{"/elsewhere", "Bearer alice-token", 404},
	} {
		_, err := websocket.Dial(t.Context(), mewtest.PlainDial, r.URL(tt.path), websocket.Options{Header: map[string][]string{"Authorization": {tt.auth}}})
		if he, ok := errors.AsType[*websocket.HandshakeError](err); !ok || he.Status != tt.status {
			t.Errorf("%s with %q: %v, want status %d", tt.path, tt.auth, err, tt.status)
		}
	}
	p := r.Open("/ws?token=alice-token", "")
	p.Send(`{"kind":"chat","payload":{"text":"hi"}}`)
	p.Want("system/error")
	p.AwaitClose(envelope.CloseUnauthorized)
}

// TestFailedJoins: failed joins are bounded by address, on every route. A valid token passes whatever its address did
// before: otherwise ten wrong tokens would lock out everybody behind that address (MEW-Q4).
func TestFailedJoins(t *testing.T) {
	r := start(t, newLabConfig(t))
	status := func(token string) int {
		_, err := websocket.Dial(t.Context(), mewtest.PlainDial, r.URL("/ws"), websocket.Options{Header: map[string][]string{"Authorization": {"Bearer " + token}}})
		he, ok := errors.AsType[*websocket.HandshakeError](err)
		if !ok {
			t.Fatalf("dial: %v", err)
		}
		return he.Status
	}
	for range credential.MaxFailures {
		if got := status("nobody"); got != 401 {
			t.Fatalf("status %d, want 401", got)
		}
	}
	if got := status("nobody"); got != 429 {
		t.Errorf("the next one gets %d, want 429", got)
	}
	if got, body := r.Call("GET", "/participants", "nobody", ""); got != 429 {
		t.Errorf("over HTTP it gets %d %s, want 429", got, body)
	}
	p := r.Open("/ws", "")
	p.Send(`{"type":"join","token":"nobody"}`)
	if got := mewtest.Text(mewtest.Payload(p.Want("system/error"), "error")); got != "rate_limited" {
		t.Errorf("a join without a header gets %s, want rate_limited", got)
	}
	p.AwaitClose(envelope.CloseUnauthorized)

	r.Join("alice-token")
	if got, body := r.Call("GET", "/participants", "bob-token", ""); got != 200 {
		t.Errorf("a valid token over HTTP gets %d %s", got, body)
	}
	p = r.Open("/ws", "")
	p.Send(`{"type":"join","token":"bob-token"}`)
	p.Want("system/welcome")
}

// TestLogOfDoor: the log of a gateway shows joins, leaves, wrong tokens and refusals. It contains no token, and a flood
// does not make a line for each message.
func TestLogOfDoor(t *testing.T) {
	var log watchedLog
	r := startWith(t, t.TempDir(), Config{Spaces: []SpaceConfig{newLabConfig(t)}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if got, body := r.Call("GET", "/participants", "wrong-token", ""); got != 403 {
		t.Fatalf("a wrong token gets %d %s", got, body)
	}
	p := r.Open("/ws", "")
	p.Send(`{"type":"join","token":"alice-token","participantId":"bob"}`)
	p.AwaitClose(envelope.CloseUnauthorized)
	alice := r.Join("alice-token")
	for range 10 * maxRefusalLines {
		alice.Send(`{"kind":"capability/grant","payload":{}}`)
	}
	alice.Fence()
	alice.Quit()
	r.Stop()
	text := log.String()
	for _, line := range []string{
		`msg="no valid token" client=127.0.0.1`, `msg="join refused" space=lab participant=alice reason=unauthorized`,
		`msg="participant joined" space=lab participant=alice id=alice`, `msg="participant left" space=lab participant=alice`,
		`msg="envelope refused" space=lab participant=alice kind=capability/grant reason=capability_violation`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("the log lacks %s:\n%.4000s", line, text)
		}
	}
	if n := strings.Count(text, "envelope refused"); n > maxRefusalLines {
		t.Errorf("%d lines about refusals of one participant, want at most %d a minute", n, maxRefusalLines)
	}
	if strings.Contains(text, "-token") {
		t.Errorf("the log holds a token:\n%.4000s", text)
	}
}

// TestTakeover: a name has one live connection. A newer one takes over without a presence message, and the close of the
// older one changes nothing (MEW-J5).
func TestTakeover(t *testing.T) {
	r := start(t, newLabConfig(t))
	bob := r.Join("bob-token")
	first := r.Join("alice-token")
	bob.Want("system/presence")
	second := r.Join("alice-token")
	first.AwaitClose(envelope.CloseReplaced)
	second.Send(`{"kind":"chat","payload":{"text":"still here"}}`)
	second.Want("chat")
	if got := mewtest.Text(mewtest.Payload(bob.Want("chat"), "text")); got != "still here" {
		t.Errorf("bob got %s", got)
	}
	for i := range maxTakeovers - 1 {
		_ = i
		r.Join("alice-token")
	}
	last := r.Open("/ws", "alice-token")
	last.Want("system/error")
	last.AwaitClose(envelope.CloseTooManyTakeovers)
}

// TestTakeoverWithAnotherID: if the newer connection has another id, the others learn that the old id left and the new
// one joined. Otherwise they would write to an id that nobody has.
func TestTakeoverWithAnotherID(t *testing.T) {
	r := start(t, newLabConfig(t))
	bob := r.Join("bob-token")
	presence := func() string {
		v := bob.Want("system/presence")
		return mewtest.Text(mewtest.Payload(v, "event")) + " " + mewtest.Text(mewtest.Payload(v, "participant", "id"))
	}
	join := func(id string) *mewtest.Player {
		p := r.Open("/ws", "")
		p.Send(`{"type":"join","token":"alice-token","participantId":"` + id + `"}`)
		p.Want("system/welcome")
		return p
	}
	first := join("client-1")
	if got := presence(); got != "join client-1" {
		t.Errorf("bob saw %s", got)
	}
	first.Send(`{"id":"r","kind":"reasoning/start","payload":{}}`)
	bob.Want("reasoning/start")
	second := join("client-2")
	first.AwaitClose(envelope.CloseReplaced)
	if got := presence() + ", " + presence(); got != "leave client-1, join client-2" {
		t.Errorf("bob saw %s", got)
	}
	if list := r.G.Space("lab").View().Reasoning; len(list) != 0 {
		t.Errorf("the reasoning of the old id stays: %+v", list)
	}
	second.Quit()
	if got := presence(); got != "leave client-2" {
		t.Errorf("bob saw %s", got)
	}
}

// TestIdentity: "from" must be the sender or absent; anything else is refused and never rewritten (MEW-53, MEW-J6).
func TestIdentity(t *testing.T) {
	r := start(t, newLabConfig(t))
	bob := r.Join("bob-token")
	p := r.Open("/ws", "")
	p.Send(`{"type":"join","token":"alice-token","participantId":"client-7"}`)
	p.Want("system/welcome")
	bob.Want("system/presence")
	for _, from := range []string{"bob", "admin", "gateway", "system:gateway", "", "nobody"} {
		p.Send(`{"id":"x","kind":"chat","from":"` + from + `","payload":{"text":"forged"}}`)
		if got := mewtest.Text(mewtest.Payload(p.Want("system/error"), "error")); got != "identity_mismatch" {
			t.Errorf("from %q: %s", from, got)
		}
		if status, body := r.Post("alice", "alice-token", `{"kind":"chat","from":"`+from+`","payload":{"text":"forged"}}`); status != 403 || !strings.Contains(body, "identity_mismatch") {
			t.Errorf("from %q by HTTP: %d %s", from, status, body)
		}
		p.Want("system/error") // from the HTTP refusal (MEW-H2)
	}
	for _, from := range []string{`,"from":"alice"`, `,"from":"client-7"`, ``} {
		p.Send(`{"kind":"chat"` + from + `,"payload":{"text":"mine"}}`)
		if got := p.Want("chat").GetStr("from"); got != "client-7" {
			t.Errorf("with %s the echo is from %s", from, got)
		}
	}
	if got := bob.Fence(); len(got) != 3 {
		t.Errorf("bob saw %s", got)
	}
}
