package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestStop: a gateway that stops sends everybody what was queued, then closes with 1001, and accepts nobody (MEW-Q6).
func TestStop(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice, silent := r.Join("alice-token"), r.Open("/ws", "")
	for r.G.conns.Len() < 2 {
	}
	const many = 500
	s := r.G.Space("lab")
	for n := range many {
		if got := say(s, "bob", fmt.Sprintf(`{"id":"n%d","kind":"chat","payload":{"text":%q}}`, n, strings.Repeat("x", 2000))); got != "" {
			t.Fatal(got)
		}
	}
	r.Cancel()
	chats := 0
	for _, text := range alice.AwaitClose(websocket.CodeGoingAway) {
		if strings.Contains(text, fmt.Sprintf(`"id":"n%d"`, chats)) {
			chats++
		}
	}
	if chats != many {
		t.Errorf("%d of %d envelopes came before the close", chats, many)
	}
	silent.AwaitClose(websocket.CodeGoingAway)
	<-r.Done
	conn, err := websocket.Dial(t.Context(), r.Dial, r.URL("/ws"), websocket.Options{})
	if err != nil {
		return
	}
	if _, _, err := conn.Read(); err == nil {
		t.Error("the gateway accepts a connection after its end")
	}
	conn.Drain()
}

// TestConnectionRecord: a connection has a record with its own id, its participant, its capabilities and its start
// (MEW-61).
func TestConnectionRecord(t *testing.T) {
	r := start(t, newLabConfig(t))
	before := time.Now()
	of := func() view.Participant {
		for _, p := range r.G.Space("lab").View().Participants {
			if p.Name == "alice" {
				return p
			}
		}
		t.Fatal("alice is not listed")
		return view.Participant{}
	}
	if p := of(); p.Connected || p.Connection != "" {
		t.Errorf("before the connection: %+v", p)
	}
	alice := r.Open("/ws", "")
	alice.Send(`{"type":"join","token":"alice-token","participantId":"client-1"}`)
	alice.Want("system/welcome")
	first := of()
	if !first.Connected || first.Connection == "" || first.ID != "client-1" || first.Since.Before(before) || len(first.Capabilities) != 7 {
		t.Errorf("record %+v", first)
	}
	r.Join("alice-token") // takes over
	if second := of(); second.Connection == "" || second.Connection == first.Connection || second.ID != "alice" {
		t.Errorf("record of the next connection %+v", second)
	}
}
