package moltspeak

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestSlowReader: a peer that sends but does not read blocks nobody. Its queue is bounded; when the queue is full, the
// peer is dropped.
func TestSlowReader(t *testing.T) {
	t.Parallel() // it mostly waits
	r, n := newTestRig(t, nil)
	long := strings.Repeat("z", 200<<10) // the name of a member, because scanning a value of this size takes long
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"answer","` + long + `":1}}`)}, nil
	}
	srv := r.serve()
	slow := dial(t, srv)
	slow.Send(websocket.Text(r.sign(cat, r.draft(cat, message.OpHello, `{"protocol_versions":["0.1"]}`))))
	for range 150 { // 30 MiB of answers
		d := r.draft(cat, message.OpQuery, plainQuery)
		d.Class = message.Public
		slow.Send(websocket.Text(r.sign(cat, d)))
	}
	open := func() int {
		r.b.sockets.mu.Lock()
		defer r.b.sockets.mu.Unlock()
		return len(r.b.sockets.all)
	}
	tick, deadline := time.NewTicker(100*time.Millisecond), time.After(2*time.Minute)
	defer tick.Stop()
	for dropped := false; !dropped; {
		if m, status := r.say(dog, r.draft(dog, message.OpDiscover, `{"capability":"x"}`)); status != http.StatusOK && status != http.StatusTooManyRequests {
			t.Fatalf("another peer meanwhile: %d %s", status, m.P.JSON())
		}
		select {
		case <-tick.C:
			dropped = open() == 0
		case <-deadline:
			t.Fatal("a peer that does not read keeps its connection")
		}
	}
}

// TestEveryCode: each of the fourteen codes is provoked by a message, with its status, its category and a hint if a
// retry can help (MS-51, MS-52).
func TestEveryCode(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`))
	query := func(change func(*message.Draft)) []byte {
		d := r.draft(cat, message.OpQuery, plainQuery)
		if change != nil {
			change(&d)
		}
		return r.sign(cat, d)
	}
	refusing := func(err error) func() {
		return func() {
			n.take = func(bridge.Inbound) (bridge.Outcome, error) { return bridge.Outcome{}, err }
		}
	}
	provoked := make(map[message.Code]bool)
	for _, tt := range []struct {
		code   message.Code
		status int
		hint   string
		before func()
		raw    []byte
	}{
		{message.CodeParse, 400, "retry", nil, []byte("null")},
		{message.CodeVersion, 400, "upgrade", nil, []byte(strings.Replace(string(query(nil)), `"v":"0.1"`, `"v":"0.2"`, 1))},
		{message.CodeSchema, 400, "retry", nil, query(func(d *message.Draft) { d.Op = "dance" })},
		{message.CodeMissingField, 400, "retry", nil, query(func(d *message.Draft) { d.P = wire.Obj() })},
		{message.CodeInvalidParam, 400, "retry", nil, query(func(d *message.Draft) { d.Time = time.Now().Add(-time.Hour) })},
		{message.CodeAuthFailed, 401, "", nil, query(func(d *message.Draft) { d.From.Key = self(dog).Key })},
		{message.CodeSignature, 401, "retry", nil, r.sign(dog, r.draft(cat, message.OpPing, `{"nonce":1}`))},
		{message.CodeCapability, 403, "request_capability", nil, query(func(d *message.Draft) { d.Cap = []string{"code.execute"} })},
		{message.CodeConsent, 403, "request_consent", nil, message.Seal(mustTree(t, string(query(func(d *message.Draft) { d.Class = message.PII }))), boxOf(cat), boxOf("me@home").Public())},
		{message.CodeClassification, 403, "retry", nil, query(func(d *message.Draft) { d.Class = message.Confidential })},
		{message.CodeRateLimit, 429, "retry_after", refusing(wire.ErrRateLimited), query(nil)},
		{message.CodeTimeout, 504, "retry_after", refusing(wire.ErrUnavailable), query(nil)},
		{message.CodeTaskFailed, 200, "", refusing(wire.ErrConversationClosed), query(nil)},
		{message.CodeInternal, 500, "retry_after", refusing(fmt.Errorf("disk: %s", "private")), query(nil)},
	} {
		if tt.before != nil {
			tt.before()
		}
		m, status := r.sendRaw(cat, tt.raw)
		row, _ := message.RowOf(tt.code)
		hint, _ := m.P.Get("suggestion")
		recoverable, _ := m.P.Get("recoverable")
		again, _ := recoverable.Boolean()
		if m.Op != message.OpError || m.P.GetStr("code") != string(tt.code) || status != tt.status || m.P.GetStr("category") != row.Category || m.P.GetStr("message") == "" {
			t.Errorf("%s: %d %s", tt.code, status, m.Tree.JSON())
		}
		if hint.GetStr("action") != tt.hint || again != row.Recoverable || strings.Contains(string(m.P.JSON()), "private") {
			t.Errorf("%s: hint %s in %s, want %q", tt.code, hint.GetStr("action"), m.P.JSON(), tt.hint)
		}
		if reply := r.b.Receive(t.Context(), tt.raw, nil, nil); (reply.Delay > 0) != (tt.hint == "retry_after" && tt.code != message.CodeInternal) {
			t.Errorf("%s: Retry-After %s", tt.code, reply.Delay)
		}
		provoked[tt.code] = true
	}
	if len(provoked) != len(message.Codes) || len(message.Codes) != 14 {
		t.Errorf("%d of %d codes were provoked", len(provoked), len(message.Codes))
	}
}
