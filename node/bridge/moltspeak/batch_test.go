package moltspeak

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestSlowBatch: a batch of many slow messages is answered before its time ends. The messages for which no time is left
// are refused, each with its id, and the peer may send them again.
func TestSlowBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{s: meshtest.Store(t)}
		n.take = func(bridge.Inbound) (bridge.Outcome, error) {
			time.Sleep(25 * time.Second)
			return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"answer","answer":"sunny"}}`)}, nil
		}
		b, err := New(Config{Agent: us, Key: keyOf("me@home"), Box: boxOf("me@home"), Serve: true, Mesh: bridgetest.NewMesh(n, n.s), Store: n.s})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{t: t, b: b, store: n.s}
		e := echo.New()
		b.Mount(e)
		var batch []string
		for i := range 10 {
			raw := r.sign(cat, r.draft(cat, message.OpQuery, plainQuery))
			if i%2 == 0 {
				raw = message.Wrap(mustTree(t, string(raw)), true)
			}
			batch = append(batch, string(raw))
		}
		req := httptest.NewRequest("POST", "/moltspeak/v0.1/batch", strings.NewReader("["+strings.Join(batch, ",")+"]"))
		req.Header.Set("Content-Type", "application/json")
		began, rec := time.Now(), httptest.NewRecorder()
		e.ServeHTTP(rec, req)
		if d := time.Since(began); d >= 2*answerTime {
			t.Errorf("the answers came after %v", d)
		}
		var answers []json.RawMessage
		if err := json.Unmarshal(rec.Body.Bytes(), &answers); err != nil || len(answers) != len(batch) {
			t.Fatalf("%d answers, %v", len(answers), err)
		}
		for i, raw := range answers {
			p, bad := message.ReadPacket(raw, boxOf(cat))
			if bad != nil {
				t.Fatal(bad)
			}
			want, code := message.OpRespond, message.Code("")
			if i > 2 {
				want, code = message.OpError, message.CodeTimeout
			}
			body, _ := p.Tree.Get("p")
			if op := message.Op(p.Tree.GetStr("op")); op != want || message.Code(body.GetStr("code")) != code || p.Tree.GetStr("re") != fmt.Sprint("m", i+1) {
				t.Errorf("answer %d: %s", i, p.Tree.JSON())
			}
		}
		if m, _ := r.sendRaw(cat, []byte(batch[9])); m.Op != message.OpRespond {
			t.Errorf("the last message again: %s", wire.OneLine(string(m.Tree.JSON()), 200))
		}
	})
}
