package moltspeak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

func limitRequests(c *Config) {
	c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: 6}).Addresses()
}

// TestAnswersToCallsAreFree: an answer to our own call is accepted even if the peer has used up its quota.
func TestAnswersToCallsAreFree(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.reply = func(peer string, got wire.Value) []byte {
		d := r.draft(peer, message.OpRespond, `{"status":"success","data":"sunny"}`)
		d.Re = got.GetStr("id")
		return r.sign(peer, d)
	}
	for used := false; !used; {
		_, ok := r.b.quotas.known.Take(cat, "acme", time.Now().Add(time.Hour)) // no token comes back while the test runs
		used = !ok
	}
	_, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, `{"action":"query","domain":"weather","params":{}}`))
	if err != nil || len(n.got) == 0 {
		t.Errorf("%v, the node got %d messages", err, len(n.got))
	}
}

// TestBatchIsCharged: an address pays for every message of a batch. Otherwise one request could make a hundred
// strangers known (AM-43).
func TestBatchIsCharged(t *testing.T) {
	r, _ := newTestRig(t, limitRequests)
	ping := string(r.sign(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)))
	batch := "[" + ping + strings.Repeat(","+ping, 19) + "]"
	status, got, _ := post(t, r.serve().URL+"/moltspeak/v0.1/batch", "application/json", []byte(batch))
	var answers []json.RawMessage
	if err := json.Unmarshal(got, &answers); err != nil || status != http.StatusOK || len(answers) != 20 {
		t.Fatalf("%d %s", status, got)
	}
	pongs := 0
	for _, a := range answers {
		p, e := message.ReadPacket(a, nil)
		if e != nil {
			t.Fatal(e)
		}
		if p.Tree.GetStr("op") == "pong" {
			pongs++
		}
	}
	if pongs == 0 || pongs > 8 { // one or two tokens come back while the test runs
		t.Errorf("%d of 20 messages were taken from an address that may send 6", pongs)
	}
}

// TestFramesAreCharged: frames of a stream cost as much as requests, so a bound connection cannot bypass the limit
// (AM-43).
func TestFramesAreCharged(t *testing.T) {
	r, _ := newTestRig(t, limitRequests)
	c := dial(t, r.serve())
	c.Send(websocket.Text(r.sign(cat, r.draft(cat, message.OpHello, `{"protocol_versions":["0.1"]}`))))
	if m, err := next(t, c); err != nil || m.GetStr("op") != "respond" {
		t.Fatalf("hello: %v %s", err, m.JSON())
	}
	forged := r.sign(dog, r.draft(cat, message.OpPing, `{"nonce":1}`))
	for answered := 0; ; answered++ {
		c.Send(websocket.Text(forged)) // the next read shows that the connection was closed
		if _, err := next(t, c); err != nil {
			break
		}
		if answered > 40 {
			t.Fatal("forged frames are answered without end")
		}
	}
	r.b.sockets.group.Close(stopPatience)
}

// TestForgeriesBarTheAddress: invalid signatures bar the address at every door (AM-43): in one batch, in single
// requests, in frames.
func TestForgeriesBarTheAddress(t *testing.T) {
	forged := func(r *rig) []byte { return r.sign(dog, r.draft(cat, message.OpPing, `{"nonce":1}`)) }
	barred := func(t *testing.T, r *rig, srv *httptest.Server) {
		t.Helper()
		ping := r.sign(dog, r.draft(dog, message.OpPing, `{"nonce":1}`))
		if status, got, _ := post(t, srv.URL+"/moltspeak/v0.1/message", "application/json", ping); status != http.StatusTooManyRequests {
			t.Errorf("after twenty forgeries: %d %s", status, got)
		}
	}
	lenient := func(c *Config) { c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: 10_000}).Addresses() }
	t.Run("message", func(t *testing.T) {
		r, _ := newTestRig(t, lenient)
		srv := r.serve()
		for range 20 {
			post(t, srv.URL+"/moltspeak/v0.1/message", "application/json", forged(r))
		}
		barred(t, r, srv)
	})
	t.Run("batch", func(t *testing.T) {
		r, _ := newTestRig(t, lenient)
		srv := r.serve()
		list := bytes.Join(slices.Repeat([][]byte{forged(r)}, 20), []byte(","))
		post(t, srv.URL+"/moltspeak/v0.1/batch", "application/json", []byte("["+string(list)+"]"))
		barred(t, r, srv)
	})
	t.Run("stream", func(t *testing.T) {
		r, _ := newTestRig(t, lenient)
		srv := r.serve()
		c := dial(t, srv)
		c.Send(websocket.Text(r.sign(cat, r.draft(cat, message.OpHello, `{"protocol_versions":["0.1"]}`))))
		for range 20 {
			c.Send(websocket.Text(forged(r)))
		}
		for {
			if _, err := next(t, c); err != nil {
				break
			}
		}
		barred(t, r, srv)
		r.b.sockets.group.Close(stopPatience)
	})
}

// TestForgedKeysAreNotStored: forged keys cost no writes. Of a message that did not verify, only its existence is
// stored, once an hour.
func TestForgedKeysAreNotStored(t *testing.T) {
	var notified []string
	r, _ := newTestRig(t, func(c *Config) {
		c.OnOtherKey = func(_ context.Context, a bridge.Address) { notified = append(notified, a.String()) }
	})
	if code := r.code(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)); code != "" {
		t.Fatalf("first message: %s", code)
	}
	var first string
	for i := range 5 {
		name := "forger" + string(rune('a'+i)) + "@acme"
		forged := r.draft(cat, message.OpPing, `{"nonce":1}`)
		forged.From.Key = self(name).Key
		if _, status := r.sendRaw(name, r.sign(name, forged)); status != http.StatusUnauthorized {
			t.Fatalf("another key: %d", status)
		}
		list, err := r.b.pins.list(t.Context())
		if err != nil || len(list) != 1 || list[0].Refused == "" {
			t.Fatalf("the owner is shown %+v, %v", list, err)
		}
		if first == "" {
			first = list[0].Refused
		}
		if list[0].Refused != first {
			t.Fatalf("forged message %d was stored", i+1)
		}
	}
	if len(notified) != 1 || notified[0] != "moltspeak:cats/cat@acme" {
		t.Errorf("the owner was notified of %v", notified)
	}
}

// TestStrangersShareHalfOfTheStreams: strangers that begin streams and never end them leave half of the places to known
// peers, and a stranger's stream is as large as a message at most.
func TestStrangersShareHalfOfTheStreams(t *testing.T) {
	now := time.Now()
	s := newStreams()
	begin := func(peer, id string, known bool) *message.Error {
		_, e := s.add(partFrom(peer, known, nil, now), message.Stream{Action: "start", ID: id})
		return e
	}
	begun := 0
	for i := range maxStreams {
		if begin(fmt.Sprintf("stranger%d", i), "s", false) == nil {
			begun++
		}
	}
	if begun != maxStreams/2 {
		t.Errorf("strangers began %d streams, want %d", begun, maxStreams/2)
	}
	if e := begin("friend", "s", true); e != nil {
		t.Errorf("a known peer: %v", e)
	}
	s = newStreams()
	chunk := strings.Repeat("a", message.MaxChunk)
	for peer, most := range map[string]int{"stranger": wire.MaxMessage, "friend": maxStream} {
		if e := begin(peer, "s", peer == "friend"); e != nil {
			t.Fatal(e)
		}
		var e *message.Error
		for seq := int64(0); e == nil; seq++ {
			if got := s.bytes; seq > 0 && got > most {
				t.Fatalf("the stream of a %s has %d bytes", peer, got)
			}
			_, e = s.add(partFrom(peer, peer == "friend", nil, now), message.Stream{Action: "chunk", ID: "s", Seq: seq, Data: chunk})
			if e == nil && s.bytes != int(seq+1)*len(chunk) || e != nil && int(seq)*len(chunk) != most {
				t.Fatalf("%s: chunk %d: %v, %d bytes", peer, seq, e, s.bytes)
			}
		}
		if e.Code != message.CodeInvalidParam || s.bytes != 0 {
			t.Errorf("%s: %v, %d bytes stay", peer, e, s.bytes)
		}
	}
}
