package relay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestConnect: a token in the header or in the query admits an agent, the welcome comes first, and wrong tokens are
// refused before the upgrade (AR-6 to AR-8, AR-11).
func TestConnect(t *testing.T) {
	var log bytes.Buffer
	s := newTestRelay(t, Config{Logger: textLogger(&log), Name: "test relay"})
	token := s.register("alice")
	for _, how := range []string{"header", "query"} {
		target, header := "ws"+strings.TrimPrefix(s.url, "http")+"/arc", http.Header{}
		if how == "query" {
			target += "?token=" + token
		} else {
			header.Set("Authorization", "Bearer "+token)
		}
		conn, err := websocket.Dial(t.Context(), dialer, target, websocket.Options{Header: header})
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		a := s.listen("alice", conn)
		got := a.next()
		payload, _ := got.Get("payload")
		to, _ := got.Get("to")
		limits, _ := payload.Get("limits")
		size, _ := limits.Get("max_message_size")
		if got.GetStr("type") != "welcome" || got.GetStr("from") != "relay" || string(to.JSON()) != `["alice"]` ||
			payload.GetStr("relay") != "test relay" || payload.GetStr("version") != "1.0" || string(size.JSON()) != "65536" {
			t.Errorf("%s: welcome %s", how, got.JSON())
		}
		if ext, _ := payload.Get("extensions"); string(ext.JSON()) != "[]" {
			t.Errorf("extensions %s, want none", ext.JSON())
		}
	}
	for _, bad := range []string{"", "?token=", "?token=tok_00000000000000000000000000000000", "?token=" + token + "x"} {
		_, err := websocket.Dial(t.Context(), dialer, "ws"+strings.TrimPrefix(s.url, "http")+"/arc"+bad, websocket.Options{})
		if refused, ok := err.(*websocket.HandshakeError); !ok || refused.Status != http.StatusUnauthorized {
			t.Errorf("%q: %v, want 401", bad, err)
		}
	}
	_, err := websocket.Dial(t.Context(), dialer, "ws"+strings.TrimPrefix(s.url, "http")+"/arc?token="+token,
		websocket.Options{Header: http.Header{"Origin": {"https://evil.example"}}})
	if refused, ok := err.(*websocket.HandshakeError); !ok || refused.Status != http.StatusForbidden {
		t.Errorf("a foreign page: %v, want 403", err)
	}
	s.stop()
	if !strings.Contains(log.String(), "/arc") {
		t.Error("the listener's log is empty, so the check for tokens proves nothing")
	}
	if strings.Contains(log.String(), token) {
		t.Error("the log holds the token")
	}
}

// TestTokenLeavesTheURL: after tokenOf, the token of a query is nowhere in the request, so that no later handler can
// log it.
func TestTokenLeavesTheURL(t *testing.T) {
	for _, header := range []string{"", "Bearer tok_header"} {
		req := httptest.NewRequest(http.MethodGet, "/arc?token=tok_query&x=1", nil)
		req.Header.Set("Authorization", header)
		want := cmp.Or(strings.TrimPrefix(header, "Bearer "), "tok_query")
		if got := tokenOf(req); got != want {
			t.Errorf("tokenOf() = %q, want %q", got, want)
		}
		if req.URL.String() != "/arc" || req.RequestURI != "/arc" {
			t.Errorf("the request is for %s, %s, want /arc", req.URL, req.RequestURI)
		}
	}
}

// TestBadTokensLimited: the relay limits wrong tokens from one address.
func TestBadTokensLimited(t *testing.T) {
	s := newTestRelay(t, Config{})
	last := 0
	for range credential.MaxFailures + 1 {
		_, err := s.dial("tok_bad")
		refused, ok := err.(*websocket.HandshakeError)
		if !ok {
			t.Fatalf("a bad token: %v", err)
		}
		last = refused.Status
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the 11th bad token: %d, want 429", last)
	}
}

// TestNewestWins: the newest connection of an id gets its frames, and the end of the older one does not change that
// (AR-13).
func TestNewestWins(t *testing.T) {
	s := newTestRelay(t, Config{})
	old := s.join("alice")
	added := s.connectAs("alice", old.token)
	if got := old.closed(); got != frame.ClosePolicy {
		t.Errorf("the older connection ended with %d, want %d", got, frame.ClosePolicy)
	}
	bob := s.join("bob")
	bob.send(`{"to":["alice"],"payload":"hi"}`)
	if got := added.next(); got.GetStr("payload") != "hi" {
		t.Errorf("the newer connection got %s", got.JSON())
	}
}

// TestStamp: a frame is delivered as it was sent, except for id, from and ts, even if the sender forged them (AR-14 to
// AR-16).
func TestStamp(t *testing.T) {
	s := newTestRelay(t, Config{})
	alice, bob := s.join("alice"), s.join("bob")
	seen := map[string]bool{}
	last := int64(0)
	for _, payload := range []string{`null`, `false`, `0`, `""`, `[]`, `3.50`, `1e999`, `12345678901234567890`, `{"id":1,"from":"x","a":{"ts":[{}]}}`} {
		alice.send(`{"id":"forged","x-top":{"deep":[1,{"y":2}]},"from":"bob","to":["bob"],"ts":1,"payload":` + payload + `,"type":"t","ref":"r"}`)
		got := bob.next()
		id := got.GetStr("id")
		var ts int64
		stamp, _ := got.Get("ts")
		if err := json.Unmarshal(stamp.JSON(), &ts); err != nil || ts < last || ts < time.Now().Add(-time.Minute).UnixMilli() {
			t.Errorf("ts %s after %d", stamp.JSON(), last)
		}
		last = ts
		if got.GetStr("from") != "alice" || !strings.HasPrefix(id, "msg_") || seen[id] {
			t.Errorf("from %q, id %q: not the relay's", got.GetStr("from"), id)
		}
		seen[id] = true
		want := `{"id":"` + id + `","from":"alice","x-top":{"deep":[1,{"y":2}]},"to":["bob"],"payload":` + payload + `,"type":"t","ref":"r","ts":` + string(stamp.JSON()) + `}`
		if string(got.JSON()) != want {
			t.Errorf("delivered %s\nwant      %s", got.JSON(), want)
		}
	}
}

// TestBadFrames: the relay answers every kind of bad frame and delivers it to nobody; the connection stays open
// (AR-19).
func TestBadFrames(t *testing.T) {
	s := newTestRelay(t, Config{})
	alice, bob := s.join("alice"), s.join("bob")
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	many := strings.TrimSuffix(strings.Repeat(`"abc",`, 65), ",")
	for _, bad := range []string{
		``, `null`, `[]`, `42`, `"x"`, `true`, `{`, `{}x`, "\xff", `{"to":["*"],"to":["bob"],"payload":1}`,
		`{"to":["*"],"payload":{"a":1,"a":2}}`, `{"to":["*"],"payload":` + deep + `}`,
		`{"payload":1}`, `{"to":[],"payload":1}`, `{"to":[` + many + `],"payload":1}`, `{"to":["*",7],"payload":1}`, `{"to":"*","payload":1}`,
		`{"to":{"0":"*"},"payload":1}`, `{"to":null,"payload":1}`, `{"to":["*"]}`, `{"to":["relay","bob"],"type":"ping"}`,
		`{"to":["*"],"payload":1,"type":7}`, `{"to":["*"],"payload":1,"ref":{}}`, `{"to":["*"],"payload":1,"type":null}`,
		`{"to":["*"],"payload":1,"type":"` + strings.Repeat("t", 129) + `"}`,
		`{"type":"batch","messages":[]}`,
	} {
		if !json.Valid([]byte(bad)) && bad == "\xff" {
			continue // the WebSocket itself refuses it
		}
		alice.send(bad)
		if got := alice.next(); code(got) != frame.CodeInvalid {
			t.Errorf("%.80q was answered with %s", bad, got.JSON())
		}
	}
	bob.quiet()
	alice.quiet()
}

// TestSizes: 65,536 bytes pass, 65,537 do not, and 10 MB end the connection but nothing else (AR-17).
func TestSizes(t *testing.T) {
	s := newTestRelay(t, Config{})
	alice, bob := s.join("alice"), s.join("bob")
	const message = `{"to":["bob"],"payload":"%s"}`
	fill := frame.MaxSize - len(message) + 2
	alice.send(fmt.Sprintf(message, strings.Repeat("x", fill)))
	if got := bob.next(); len(got.GetStr("payload")) != fill {
		t.Errorf("65,536 bytes: %d came", len(got.GetStr("payload")))
	}
	alice.send(fmt.Sprintf(message, strings.Repeat("x", fill+1)))
	if got := alice.next(); code(got) != frame.CodeTooLarge {
		t.Errorf("65,537 bytes: %s", got.JSON())
	}
	alice.quiet()
	huge, err := s.dial(s.register("huge"))
	if err != nil {
		t.Fatal(err)
	}
	h := s.listen("huge", huge)
	_ = huge.Send(websocket.Text(bytes.Repeat([]byte("x"), 10<<20))) // it may be cut off before all is written
	if got := h.closed(); got != websocket.CodeTooLarge && got != websocket.CodeAbnormal {
		t.Errorf("a huge frame ended with %d, want %d", got, websocket.CodeTooLarge)
	}
	bob.quiet()
}

// TestRouting checks who receives which frame (AR-20, AR-21).
func TestRouting(t *testing.T) {
	s := newTestRelay(t, Config{})
	a, b, c := s.join("aaa"), s.join("bbb"), s.join("ccc")
	a.send(`{"to":["*"],"payload":1}`)
	for _, x := range []*agent{b, c} {
		if got := x.next(); string(got.JSON()) == "" || got.GetStr("from") != "aaa" {
			t.Errorf("%s got %s", x.id, got.JSON())
		}
	}
	a.quiet()
	a.send(`{"to":["bbb","nobody","bbb","aaa"],"payload":2}`)
	b.next()
	a.next() // it named itself
	for _, x := range []*agent{a, b, c} {
		x.quiet()
	}
	a.send(`{"to":["bbb","*","ccc"],"payload":3}`)
	b.next()
	c.next()
	a.send(`{"to":["bbb","relay"],"type":"ping","payload":4}`)
	if got := a.next(); got.GetStr("type") != "pong" {
		t.Errorf("relay beside others: %s", got.JSON())
	}
	for _, x := range []*agent{a, b, c} {
		x.quiet()
	}
}

// TestCommands checks the commands of section 5 (AR-24, AR-25).
func TestCommands(t *testing.T) {
	s := newTestRelay(t, Config{})
	a, b := s.join("aaa"), s.join("bbb")
	for _, tt := range []struct{ send, kind, payload string }{
		{`{"to":["relay"],"type":"ping"}`, "pong", `null`},
		{`{"to":["relay"],"type":"ping","payload":{"n":1}}`, "pong", `{"n":1}`},
		{`{"to":["relay"],"type":"list_subscriptions"}`, "subscriptions", `{"agents":[]}`},
		{`{"to":["relay"],"type":"subscribe","payload":{"agents":["bbb","later-one","bbb"]}}`, "subscribed", `{"agents":["bbb","later-one"],"count":2}`},
		{`{"to":["relay"],"type":"subscribe","payload":{"subscribe_to":["ccc"]}}`, "subscribed", `{"agents":["ccc"],"count":3}`},
		{`{"to":["relay"],"type":"list_subscriptions","payload":{}}`, "subscriptions", `{"agents":["bbb","ccc","later-one"]}`},
		{`{"to":["relay"],"type":"unsubscribe","payload":{"agents":["later-one"]}}`, "unsubscribed", `{"agents":["later-one"],"count":2}`},
	} {
		a.send(tt.send)
		got := a.next()
		if payload, _ := got.Get("payload"); got.GetStr("type") != tt.kind || string(payload.JSON()) != tt.payload || got.GetStr("from") != "relay" {
			t.Errorf("%s was answered with %s, want %s %s", tt.send, got.JSON(), tt.kind, tt.payload)
		}
	}
	for send, want := range map[string]string{
		`{"to":["relay"],"type":"dance"}`:                                              frame.CodeUnknown,
		`{"to":["relay"]}`:                                                             frame.CodeUnknown,
		`{"to":["relay"],"type":"federation:peer","payload":{}}`:                       frame.CodeUnknown,
		`{"to":["relay"],"type":"storage:status","payload":{}}`:                        frame.CodeUnknown,
		`{"to":["relay"],"type":"query","payload":"x"}`:                                frame.CodeUnknown, // the extension is off
		`{"to":["relay"],"type":"vote","ref":"x","payload":{"approve":true}}`:          frame.CodeUnknown,
		`{"to":["relay"],"type":"command","payload":{"command":"history"}}`:            frame.CodeUnsupported,
		`{"to":["relay"],"type":"subscribe"}`:                                          frame.CodeInvalid,
		`{"to":["relay"],"type":"subscribe","payload":{"agents":"bbb"}}`:               frame.CodeInvalid,
		`{"to":["relay"],"type":"subscribe","payload":{"agents":["Not An Id"]}}`:       frame.CodeInvalid,
		`{"to":["relay"],"type":"subscribe","payload":{"agents":[` + ids(1001) + `]}}`: frame.CodeInvalid,
	} {
		a.send(send)
		if got := a.next(); code(got) != want {
			t.Errorf("%.100s was answered with %s, want %s", send, got.JSON(), want)
		}
	}
	b.send(`{"to":["*"],"payload":"once"}`)
	a.next()
	a.quiet()
	b.send(`{"to":["aaa"],"type":"discovery","payload":{"skills":["go"]}}`)
	a.next()
	bbb := s.conns.ofAgents([]string{"bbb"})[0]
	bbb.mu.Lock()
	if !bbb.about.At.IsZero() {
		t.Errorf("without the extension, the relay remembers the payload %+v (AR-22)", bbb.about)
	}
	bbb.mu.Unlock()
	c := s.join("ccc")
	b.send(`{"to":["ccc"],"payload":"private"}`)
	c.next()
	a.quiet()
	again := s.connectAs("aaa", a.token)
	again.send(`{"to":["relay"],"type":"list_subscriptions"}`)
	if got := again.next(); !strings.Contains(string(got.JSON()), `{"agents":[]}`) {
		t.Errorf("after a reconnect: %s", got.JSON())
	}
}

func ids(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"agent-%d",`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// TestRate: the relay refuses the 101st message in a minute and the 1,001st in an hour, and disconnects an agent that
// keeps sending; trusted agents have no limit (AR-31). [TestAllowance] covers how the rate recovers.
func TestRate(t *testing.T) {
	s := newTestRelay(t, Config{PerMinute: 100, PerHour: 1000})
	a := s.join("aaa")
	for range 100 {
		a.send(`{"to":["nobody"],"payload":1}`)
	}
	refused := 0
	for range 60 { // some come back while the test runs
		if a.conn.Send(websocket.Text([]byte(`{"to":["nobody"],"payload":1}`))) != nil {
			break
		}
	}
	for data := range a.in {
		v, err := wire.ParseForeign(data, frame.MaxDepth, frame.MaxValues)
		if err != nil || code(v) != frame.CodeRate {
			t.Fatalf("got %s", data)
		}
		refused++
	}
	if got := a.closed(); got != frame.CloseRate || refused != maxDropped {
		t.Errorf("%d frames refused, then %d; want %d, then %d", refused, got, maxDropped, frame.CloseRate)
	}
	hourly := newTestRelay(t, Config{PerHour: 1000})
	c := hourly.join("ccc")
	for range 999 {
		c.send(`{"to":["nobody"],"payload":1}`)
	}
	c.quiet() // the thousandth
	c.send(`{"to":["nobody"],"payload":1}`)
	if got := c.next(); code(got) != frame.CodeRate {
		t.Errorf("the 1,001st message in an hour: %s", got.JSON())
	}
	c = hourly.connectAs("ccc", c.token)
	c.send(`{"to":["nobody"],"payload":1}`)
	if got := c.next(); code(got) != frame.CodeRate {
		t.Errorf("the same after a reconnect: %s", got.JSON())
	}
	made, err := s.Relay.register(t.Context(), member{Account: credential.Account{ID: "trusted"}, Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	b := s.connectAs("trusted", made.Token)
	for range 300 {
		b.send(`{"to":["nobody"],"payload":1}`)
	}
	b.quiet()
}

// TestGoingDown: a relay that stops closes every connection with 1001.
func TestGoingDown(t *testing.T) {
	s := newTestRelay(t, Config{})
	a := s.join("aaa")
	s.stop()
	if got := a.closed(); got != websocket.CodeGoingAway {
		t.Errorf("the connection ended with %d, want 1001", got)
	}
}

// TestCORS: pages of every origin may read the HTTP answers in the public profile, and none in the local profile
// (AR-34).
func TestCORS(t *testing.T) {
	for _, open := range []bool{true, false} {
		s := newTestRelay(t, Config{AnyOrigin: open})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, s.url+"/register", nil)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		allowed := strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), wire.HeaderInvite)
		if ok := resp.StatusCode == http.StatusNoContent && resp.Header.Get("Access-Control-Allow-Origin") == "*" && allowed; ok != open {
			t.Errorf("OPTIONS with any origin %v: %d %v", open, resp.StatusCode, resp.Header)
		}
	}
}
