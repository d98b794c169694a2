package moltspeak

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// limited lets an address make six requests a minute.
func limited(c *Config) {
	c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: 6}).Addresses()
}

// An address pays for every message of a batch, or one request would make a hundred strangers known (AM-43).
func TestBatchIsCharged(t *testing.T) {
	r, _ := alone(t, limited)
	ping := string(r.signed(cat, r.draft(cat, OpPing, `{"nonce":1}`)))
	batch := "[" + ping + strings.Repeat(","+ping, 19) + "]"
	status, got, _ := post(t, r.serve().URL+"/moltspeak/v0.1/batch", "application/json", []byte(batch))
	var answers []json.RawMessage
	if err := json.Unmarshal(got, &answers); err != nil || status != http.StatusOK || len(answers) != 20 {
		t.Fatalf("%d %s", status, got)
	}
	pongs := 0
	for _, a := range answers {
		p, e := ReadPacket(a, nil)
		if e != nil {
			t.Fatal(e)
		}
		if p.Tree.GetStr("op") == "pong" {
			pongs++
		}
	}
	if pongs == 0 || pongs > 8 { // one or two come back while the test runs
		t.Errorf("%d of 20 messages were taken from an address that may send 6", pongs)
	}
}

// Frames of a stream cost what requests do: a bound connection is no way around the limit (AM-43).
func TestFramesAreCharged(t *testing.T) {
	r, _ := alone(t, limited)
	c := dial(t, r.serve())
	c.Send(websocket.Text(r.signed(cat, r.draft(cat, OpHello, `{"protocol_versions":["0.1"]}`))))
	if m, err := next(t, c); err != nil || m.GetStr("op") != "hello_ack" {
		t.Fatalf("hello: %v %s", err, m.JSON())
	}
	forged := r.signed(dog, r.draft(cat, OpPing, `{"nonce":1}`))
	for answered := 0; ; answered++ {
		c.Send(websocket.Text(forged)) // a closed connection shows at the next read
		if _, err := next(t, c); err != nil {
			break
		}
		if answered > 40 {
			t.Fatal("forged frames are answered without end")
		}
	}
	r.b.sockets.close()
}
