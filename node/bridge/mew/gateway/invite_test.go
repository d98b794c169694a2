package gateway

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/store"
)

// TestInvite: only the inviter gets the token; the others learn that somebody was invited (MEW-27).
func TestInvite(t *testing.T) {
	r := start(t, newBossConfig(t))
	manager, other := r.Join("manager-token"), r.Join("other-token")
	manager.Until("system/presence")
	manager.Send(`{"id":"i1","kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":[{"kind":"chat"}],"reason":"help"}}`)
	ack := manager.Want("space/invite-ack")
	token := mewtest.Text(mewtest.Payload(ack, "token"))
	if ack.GetStr("from") != "system:gateway" || string(mewtest.Get(ack, "correlation_id").JSON()) != `["i1"]` ||
		mewtest.Text(mewtest.Payload(ack, "status")) != "created" || mewtest.Text(mewtest.Payload(ack, "participant_id")) != "guest" || len(token) < 40 ||
		mewtest.Text(mewtest.Payload(ack, "connection_url")) != "ws://gateway.example/ws?space=lab" {
		t.Errorf("ack %s", ack.JSON())
	}
	p := other.Want("system/presence")
	if got := string(mewtest.Payload(p).JSON()); got != `{"event":"invited","participant":{"id":"guest","capabilities":[{"kind":"chat"}]},"invited_by":"manager","reason":"help"}` {
		t.Errorf("presence %s", got)
	}
	for _, s := range append(manager.Fence(), other.Fence()...) {
		if strings.Contains(s, token) || strings.Contains(s, "space/invite") {
			t.Errorf("somebody saw %s", s)
		}
	}
	if _, history := r.Call("GET", "/participants/other/messages", "other-token", ""); strings.Contains(history, token) {
		t.Error("the history holds the token")
	}
	guest := r.Join(token)
	guest.Send(`{"kind":"chat","payload":{"text":"hello"}}`)
	manager.Until("chat")

	manager.Send(`{"id":"i2","kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":[]}}`)
	if ack := manager.Until("space/invite-ack"); string(mewtest.Payload(ack).JSON()) != `{"status":"already_exists","participant_id":"guest","message":"There is a participant with this id"}` {
		t.Errorf("ack %s", ack.JSON())
	}
	status, body := r.Post("manager", "manager-token", `{"kind":"space/invite","payload":{"participant_id":"guest"}}`)
	if status != 409 || !strings.Contains(body, `"status":"already_exists","participant_id":"guest","message"`) {
		t.Errorf("by HTTP: %d %s", status, body)
	}
	status, body = r.Post("manager", "manager-token", `{"kind":"space/invite","payload":{"participant_id":"second","initial_capabilities":["chat"]}}`)
	if status != 200 || !strings.Contains(body, `"status":"created","participant_id":"second","token":"`) {
		t.Errorf("by HTTP: %d %s", status, body)
	}
	for _, bad := range []string{`"a/b"`, `"a\\b"`, `".."`, `"a#b"`, `"gateway"`, `"system:x"`, `""`, `7`, `"a\u0000b"`, `"` + strings.Repeat("x", 129) + `"`} {
		status, body := r.Post("manager", "manager-token", `{"kind":"space/invite","payload":{"participant_id":`+bad+`}}`)
		if status != 400 || body != `{"error":"invalid_request","message":"participant_id contains invalid characters"}` {
			t.Errorf("inviting %s: %d %s", bad, status, body)
		}
	}
}

// TestInviteWider: in a hosted space an inviter gives only what it holds. In a drop-in space it may give more, unless
// invite_subset is set (MEW-27). The implicit capability exists only in drop-in spaces (MEW-D7).
func TestInviteWider(t *testing.T) {
	for _, tt := range []struct {
		name           string
		dropIn, subset bool
		status         int
	}{{"hosted", false, false, 403}, {"drop-in", true, false, 200}, {"drop-in, subset", true, true, 403}} {
		t.Run(tt.name, func(t *testing.T) {
			sc := newBossConfig(t)
			sc.DropIn, sc.InviteSubset = tt.dropIn, tt.subset
			r := start(t, sc)
			status, body := r.Post("manager", "manager-token", `{"kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":["mcp/*"]}}`)
			if status != tt.status {
				t.Errorf("%d %s, want %d", status, body, tt.status)
			}
			implicit := strings.Contains(r.Join("worker-token").Held(), `{"id":"mcp-response","kind":"mcp/response"}`)
			if implicit != tt.dropIn {
				t.Errorf("mcp/response is implicit: %t", implicit)
			}
		})
	}
}

// TestKick: everybody sees a kick. It ends the connection with 4403 and bars the tokens until a new invite (MEW-30).
func TestKick(t *testing.T) {
	r := start(t, newBossConfig(t))
	manager, worker, other := r.Join("manager-token"), r.Join("worker-token"), r.Join("other-token")
	manager.Send(`{"kind":"space/kick","payload":{"participant_id":"worker","reason":"enough"}}`)
	if last := worker.AwaitClose(envelope.CloseKicked); len(last) == 0 || !strings.Contains(last[len(last)-1], `"space/kick"`) {
		t.Errorf("the worker's last envelopes: %s", last)
	}
	other.Until("space/kick")
	if p := other.Until("system/presence"); mewtest.Text(mewtest.Payload(p, "event")) != "leave" {
		t.Errorf("got %s", p.JSON())
	}
	p := r.Open("/ws", "")
	p.Send(`{"type":"join","token":"worker-token"}`)
	p.Want("system/error")
	p.AwaitClose(envelope.CloseUnauthorized)
	if status, _ := r.Post("worker", "worker-token", `{"kind":"chat"}`); status != 403 {
		t.Errorf("its token still works by HTTP: %d", status)
	}
	manager.Send(`{"kind":"space/invite","payload":{"participant_id":"worker","initial_capabilities":["chat"]}}`)
	ack := manager.Until("space/invite-ack")
	if mewtest.Text(mewtest.Payload(ack, "status")) != "created" {
		t.Fatalf("ack %s", ack.JSON())
	}
	r.Join(mewtest.Text(mewtest.Payload(ack, "token"))).Fence()
	if status, _ := r.Post("worker", "worker-token", `{"kind":"chat"}`); status != 403 {
		t.Errorf("the old token is back: %d", status)
	}
	manager.Send(`{"kind":"space/kick","payload":{"participant_id":"nobody"}}`)
	if e := manager.Until("system/error"); mewtest.Text(mewtest.Payload(e, "error")) != "participant_not_found" {
		t.Errorf("got %s", e.JSON())
	}
}

// TestInviteIsRepeated: an invite whose token could not be written changes nothing, and can be repeated (MEW-27).
func TestInviteIsRepeated(t *testing.T) {
	s := newQuietSpace(t, newBossConfig(t))
	if fault := say(s, "manager", `{"kind":"space/kick","payload":{"participant_id":"worker"}}`); fault != "" {
		t.Fatal(fault)
	}
	full := true
	s.gatewayCfg.KeepToken = func(string, string) error {
		if full {
			return errors.New("the disk is full")
		}
		return nil
	}
	for _, name := range []string{"worker", "guest"} {
		full = true
		invite := `{"kind":"space/invite","payload":{"participant_id":"` + name + `","initial_capabilities":["chat"]}}`
		if fault := say(s, "manager", invite); fault != "unavailable" {
			t.Errorf("%s, while the disk is full: %q", name, fault)
		}
		full = false
		got, fault := s.receive(s.members.byName["manager"], []byte(invite), "http")
		if fault != nil || got.body.GetStr("status") != "created" || got.body.GetStr("token") == "" {
			t.Errorf("%s, repeated: %s, %v", name, got.body.JSON(), fault)
		}
	}
}

// TestInviteByMail: an invite with an address notifies the operator in the same unit, without the token (MEW-28).
func TestInviteByMail(t *testing.T) {
	var got []Invitation
	r := startWith(t, t.TempDir(), Config{Spaces: []SpaceConfig{newBossConfig(t)}, InviteNotice: func(i Invitation) store.Change {
		got = append(got, i)
		return store.Change{IfRev: store.Any, Record: store.Record{NS: "test", Key: i.Participant, Body: []byte("{}")}}
	}})
	invite := func(extra string) {
		r.Post("manager", "manager-token", `{"kind":"space/invite","payload":{"participant_id":"guest"`+extra+`,"initial_capabilities":["chat"]}}`)
	}
	invite(`,"email":"a@b.example\u001b[31m"`)
	invite(`,"email":"again@b.example"`) // the guest exists already
	want := Invitation{Space: "lab", Participant: "guest", Email: "a@b.example?[31m", URL: "ws://gateway.example/ws?space=lab"}
	if len(got) != 1 || got[0] != want {
		t.Errorf("the operator was notified of %v", got)
	}
	if _, err := r.Store.Records().Get(t.Context(), "test", "guest", time.Now()); err != nil {
		t.Error(err)
	}
}
