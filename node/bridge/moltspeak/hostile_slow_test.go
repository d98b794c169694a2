//go:build slow

package moltspeak

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHostileDoors: hostile input at any door is answered with an error or ends the connection. It reaches no handler,
// and the next message is accepted.
func TestHostileDoors(t *testing.T) {
	t.Parallel() // it mostly waits
	r, n := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // pins
	srv := r.serve()
	good := mustTree(t, string(r.sign(dog, r.draft(dog, message.OpQuery, plainQuery))))
	forged := func(name string, change func(*message.Draft)) []byte {
		d := r.draft(cat, message.OpQuery, plainQuery)
		d.ID = name
		change(&d)
		return r.sign(dog, d)
	}
	hostile := map[string][]byte{
		"nothing": {}, "null": []byte("null"), "true": []byte("true"), "number": []byte("7"), "text": []byte(`"x"`), "list": []byte("[]"), "empty": []byte("{}"),
		"open": []byte("{"), "two": []byte("{}{}"), "duplicate": []byte(`{"v":"0.1","v":"0.1"}`), "prototype": []byte(`{"__proto__":{}}`), "NaN": []byte(`{"v":NaN}`),
		"infinite": []byte(`{"v":1e999}`), "surrogate": []byte(`{"v":"\ud800"}`), "bytes": []byte("\xff\xfe"), "mark": []byte("\xef\xbb\xbf{}"),
		"deep": bytes.Repeat([]byte("["), 100_000), "deep object": bytes.Repeat([]byte(`{"a":`), 50_000), "many": []byte("[" + strings.Repeat("1,", 300_000) + "1]"),
		"10 MB": []byte(`{"v":"` + strings.Repeat("x", 10<<20) + `"}`), "envelope of null": []byte(`{"moltspeak":"0.1","envelope":{},"message":null}`),
		"empty box":         []byte(`{"moltspeak":"0.1","envelope":{"encrypted":true,"algorithm":"x25519-xsalsa20-poly1305","sender_public":"x25519:AA==","nonce":""},"ciphertext":""}`),
		"another's key":     forged("f1", func(d *message.Draft) { d.From.Key = self(dog).Key }),
		"another's name":    forged("f2", func(*message.Draft) {}),
		"without a key":     forged("f3", func(d *message.Draft) { d.From.Key = "" }),
		"a new name's key":  forged("f4", func(d *message.Draft) { d.From = self("new@x") }),
		"an impossible key": forged("f5", func(d *message.Draft) { d.From = message.Agent{Agent: "new", Org: "x", Key: "ed25519:AAAA"} }),
		"a name with space": forged("f6", func(d *message.Draft) { d.From.Agent = "c at" }),
	}
	for _, m := range good.Members() {
		for kind, other := range map[string]wire.Value{"null": {}, "flag": wire.Bool(true), "list": wire.Arr(wire.Int(1)), "object": wire.Obj(), "number": wire.Int(-1), "long": wire.Text(strings.Repeat("y", 5000))} {
			hostile[m.Key+" is "+kind] = good.With(m.Key, other).JSON()
		}
	}
	for _, d := range r.doors(srv) {
		t.Run(d.name, func(t *testing.T) {
			for name, raw := range hostile {
				before := len(n.got)
				if m, ended := d.say(raw); !ended && (m.GetStr("op") != "error" || m.GetStr("sig") == "") {
					t.Errorf("%s: answered %.200s", name, m.JSON())
				}
				if len(n.got) != before {
					t.Errorf("%s: the node got it", name)
				}
			}
			if m, _ := d.say(r.sign(dog, r.draft(dog, message.OpPing, `{"nonce":1}`))); m.GetStr("op") != "pong" {
				t.Errorf("a good message afterwards: %s", m.JSON())
			}
		})
	}
	r.b.sockets.group.Close(stopPatience)
}

// door is a way into the endpoint: say sends one message and returns the answer. ended reports that the connection
// ended.
type door struct {
	name string
	say  func(raw []byte) (answer wire.Value, ended bool)
}

// doors returns all doors. The stream door opens a new stream as dog if the last one ended.
func (r *rig) doors(srv *httptest.Server) []door {
	read := func(body []byte) wire.Value {
		p, e := message.ReadPacket(body, boxOf(dog))
		if e != nil {
			r.t.Fatalf("the answer is not a packet: %v: %.200s", e, body)
		}
		return p.Tree
	}
	var conn *websocket.Conn
	greeted := func() {
		conn = dial(r.t.(*testing.T), srv)
		conn.Send(websocket.Text(r.sign(dog, r.draft(dog, message.OpHello, `{"protocol_versions":["0.1"]}`))))
		if m, err := next(r.t.(*testing.T), conn); err != nil || m.GetStr("op") == "error" {
			r.t.Fatalf("hello: %v %s", err, m.JSON())
		}
	}
	return []door{
		{"message", func(raw []byte) (wire.Value, bool) {
			_, body, _ := post(r.t.(*testing.T), srv.URL+"/moltspeak/v0.1/message", "application/json", raw)
			return read(body), false
		}},
		{"batch", func(raw []byte) (wire.Value, bool) {
			if len(raw) == 0 { // a list without messages
				return wire.Value{}, true
			}
			list := append(append([]byte("["), raw...), ']')
			status, body, _ := post(r.t.(*testing.T), srv.URL+"/moltspeak/v0.1/batch", "application/json", list)
			if status != http.StatusOK { // the list itself is invalid
				return read(body), false
			}
			var answers []json.RawMessage
			if err := json.Unmarshal(body, &answers); err != nil || len(answers) != 1 {
				r.t.Fatalf("%v: %.200s", err, body)
			}
			return read(answers[0]), false
		}},
		{"stream", func(raw []byte) (wire.Value, bool) {
			if conn == nil {
				greeted()
			}
			conn.Send(websocket.Text(raw))
			m, err := next(r.t.(*testing.T), conn)
			if err != nil {
				conn = nil
			}
			return m, err != nil
		}},
	}
}
