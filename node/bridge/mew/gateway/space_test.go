package gateway

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// TestPassedOn: an envelope arrives as it was sent, except for fields that the gateway sets or normalizes (MEW-3 to
// MEW-7).
func TestPassedOn(t *testing.T) {
	r := start(t, newLabConfig(t))
	p := r.Open("/ws", "")
	p.Send(`{"type":"join","token":"alice-token","participantId":"client-1"}`)
	p.Want("system/welcome")
	bob := r.Join("bob-token")
	for _, tt := range []struct{ send, want string }{
		{`{"zeta":[1e400,-0,12345678901234567890,0.10],"protocol":"mew/v0.4","id":"x-1","ts":"2025-01-01T00:00:00Z","from":"client-1","kind":"chat","payload":{"b":"ü\/","a":null}}`,
			`{"zeta":[1e400,-0,12345678901234567890,0.10],"protocol":"mew/v0.4","id":"x-1","ts":"2025-01-01T00:00:00Z","from":"client-1","kind":"chat","payload":{"b":"ü/","a":null}}`},
		{`{"protocol":"mew/v0.4","id":"x-1","ts":"t","from":"alice","to":"alice","kind":"chat","correlation_id":"c","context":"a/b"}`,
			`{"protocol":"mew/v0.4","id":"x-1","ts":"t","from":"client-1","to":["client-1"],"kind":"chat","correlation_id":["c"],"context":"a/b"}`},
		{`{"protocol":"mew/v0.4","id":"x-2","ts":"t","from":"client-1","to":[],"kind":"chat","correlation_id":null,"context":null}`,
			`{"protocol":"mew/v0.4","id":"x-2","ts":"t","from":"client-1","to":[],"kind":"chat","correlation_id":[]}`},
		{` { "protocol" : "mew/v0.4", "id":"x-3","ts":"t",` + "\n" + `"from":"client-1", "to":["alice","nobody","bob"], "kind":"chat" } `,
			`{"protocol":"mew/v0.4","id":"x-3","ts":"t","from":"client-1","to":["client-1","nobody","bob"],"kind":"chat"}`},
	} {
		p.Send(tt.send)
		for _, who := range []*mewtest.Player{p, bob} {
			for {
				_, got := who.Next()
				if strings.Contains(got, "system/presence") {
					continue
				}
				if got != tt.want {
					t.Errorf("%s\narrived as %s\nwant       %s", tt.send, got, tt.want)
				}
				break
			}
		}
	}
	p.Send(`{"kind":"chat"}`)
	got := p.Want("chat")
	for i, key := range []string{"protocol", "id", "ts", "from", "kind"} {
		if got.Members()[i].Key != key {
			t.Errorf("member %d of %s is not %s", i, got.JSON(), key)
		}
	}
	if _, err := time.Parse(time.RFC3339, got.GetStr("ts")); err != nil || got.GetStr("protocol") != envelope.Protocol {
		t.Errorf("filled in: %s", got.JSON())
	}
	if err := p.Conn.Send(binaryText(`{"kind":"chat","payload":{"text":"as binary"}}`)); err != nil { // some clients send text as binary
		t.Fatal(err)
	}
	p.Want("chat")
}

// TestKinds: every kind of MEW-8 that a participant may send passes under "*", and so does an unknown kind. The sender
// and everybody else get the envelopes in one order (MEW-Q1).
func TestKinds(t *testing.T) {
	r := start(t, newLabConfig(t))
	admin, bob := r.Join("admin-token"), r.Join("bob-token")
	admin.Until("system/presence")
	if len(envelope.Rules) != 40 {
		t.Errorf("%d kinds have a rule, want the 40 of MEW-8", len(envelope.Rules))
	}
	n := 0
	for kind, rule := range envelope.Rules {
		if rule.GatewayOnly || actions[kind] != nil && kind != envelope.KindProposal && kind != envelope.KindWithdraw && kind != envelope.KindPause && kind != envelope.KindResume {
			continue
		}
		admin.Send(fmt.Sprintf(`{"id":%q,"kind":%q,"correlation_id":["c"],"context":"x","payload":{}}`, kind, kind))
		n++
	}
	admin.Send(`{"id":"acme/own","kind":"acme/own","payload":{}}`)
	for range n + 1 {
		_, mine := admin.Next()
		if _, theirs := bob.Next(); theirs != mine || strings.Contains(mine, "system/error") {
			t.Errorf("admin saw %s, bob %s", mine, theirs)
		}
	}
}

// TestIsolation: spaces share nothing: no names, tokens, history or streams (MEW-20).
func TestIsolation(t *testing.T) {
	other := newLabConfig(t)
	other.ID = "den"
	for i := range other.Participants {
		other.Participants[i].Tokens = []string{"den-" + other.Participants[i].Name}
	}
	r := start(t, newLabConfig(t), other)
	here, there := r.Join("alice-token"), r.Join("den-alice")
	here.Send(`{"kind":"chat","payload":{"text":"in the lab"}}`, `{"kind":"stream/request","payload":{}}`)
	here.Fence()
	if extra := there.Fence(); len(extra) > 0 {
		t.Errorf("the den saw %s", extra)
	}
	there.Send("#stream-1#x")
	there.Want("system/error")
	if _, body := r.Call("GET", "/participants/alice/messages", "den-alice", ""); strings.Contains(body, "in the lab") {
		t.Error("the history of the lab is read from the den")
	}
	if status, _ := r.Call("GET", "/participants/alice/messages?space=lab", "den-alice", ""); status != 403 {
		t.Errorf("a token of the den opens the lab: %d", status)
	}
	status, body := r.Call("GET", "/participants?space=den", "den-alice", "")
	if status != 200 || !strings.Contains(body, `{"id":"alice","connected":true`) || !strings.Contains(body, `{"id":"bob","connected":false`) {
		t.Errorf("participants: %d %s", status, body)
	}
}

// TestPolling: a poll returns the envelopes that the participant could have seen, once, page by page (MEW-60, MEW-H2).
func TestPolling(t *testing.T) {
	r := start(t, newLabConfig(t))
	for i := range 5 {
		r.Post("alice", "alice-token", fmt.Sprintf(`{"id":"m%d","kind":"chat","payload":{}}`, i))
	}
	r.Post("bob", "bob-token", `{"kind":"mcp/request"}`) // refused, so not in the history
	var got []string
	since := ""
	for range 4 {
		status, body := r.Call("GET", "/participants/bob/messages?limit=2&since="+url.QueryEscape(since), "bob-token", "")
		if status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		v := mewtest.Parse(t, body)
		list, _ := v.Get("messages")
		for m := range list.Elems() {
			got = append(got, m.GetStr("id"))
		}
		since = v.GetStr("next_since")
	}
	if fmt.Sprint(got) != "[m0 m1 m2 m3 m4]" {
		t.Errorf("polled %s", got)
	}
}

// TestWaitingPoll: a poll that waits gets the next envelope at once (MEW-60).
func TestWaitingPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startOn(t, t.TempDir(), Config{Spaces: []SpaceConfig{newLabConfig(t)}}, mewtest.NewPipes())
		start, polled := time.Now(), startPoll(r, "bob", "bob-token")
		synctest.Wait()
		if fault := say(r.G.Space("lab"), "alice", `{"id":"late","kind":"chat"}`); fault != "" {
			t.Fatal(fault)
		}
		if w := <-polled; !strings.Contains(w.Body.String(), `"late"`) || time.Since(start) > 0 {
			t.Errorf("the waiting poll got %d %s, after %v", w.Code, w.Body, time.Since(start))
		}
	})
}

// startPoll starts a poll that waits for 20 seconds.
func startPoll(r *mewtest.Rig[*Gateway], name, token string) <-chan *httptest.ResponseRecorder {
	polled := make(chan *httptest.ResponseRecorder, 1)
	req := httptest.NewRequest("GET", "/participants/"+name+"/messages?wait=20", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	go func() {
		w := httptest.NewRecorder()
		r.G.ServeHTTP(w, req)
		polled <- w
	}()
	return polled
}

// TestHistory: times of receipt always grow, even if the clock is set back, and the history is bounded.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h history
		m := &member{record: &memberRecord{}}
		now := time.Now()
		first := h.nextTime(now)
		h.add(first, []byte(`{"n":1}`), nil)
		second := h.nextTime(now.Add(-time.Hour))
		if !second.After(first) {
			t.Errorf("after %v came %v", first, second)
		}
		h.add(second, []byte(`{"n":2}`), nil)
		if got, _ := h.since(first, m, 10); len(got) != 1 || string(got[0].JSON()) != `{"n":2}` {
			t.Errorf("since the first: %v", got)
		}
		h.add(h.nextTime(now), []byte(`{"n":3}`), m)
		if got, _ := h.since(time.Time{}, m, 10); len(got) != 2 {
			t.Errorf("an envelope that m did not get is shown: %v", got)
		}
		for range 3 * maxHistory {
			h.add(h.nextTime(now), []byte(`{}`), nil)
		}
		if n := len(h.entries) - h.start; n > maxHistory || len(h.entries) > 2*maxHistory+1 {
			t.Errorf("%d envelopes are kept, in %d places", n, len(h.entries))
		}
		big := make([]byte, envelope.MaxEnvelope)
		for range 100 {
			h.add(h.nextTime(now), big, nil)
		}
		if h.bytes > maxHistoryBytes {
			t.Errorf("%d bytes are kept", h.bytes)
		}
	})
}

// TestHistoryBeforeInvite: an invited participant cannot read envelopes from before its invite.
func TestHistoryBeforeInvite(t *testing.T) {
	r := start(t, newBossConfig(t))
	r.Post("manager", "manager-token", `{"id":"before","kind":"chat"}`)
	_, body := r.Post("manager", "manager-token", `{"kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":["chat"]}}`)
	r.Post("manager", "manager-token", `{"id":"after","kind":"chat"}`)
	_, seen := r.Call("GET", "/participants/guest/messages", mewtest.Parse(t, body).GetStr("token"), "")
	if strings.Contains(seen, `"before"`) || !strings.Contains(seen, `"after"`) {
		t.Errorf("the guest reads %s", seen)
	}
}

func FuzzEnvelope(f *testing.F) {
	for _, s := range []string{`{"kind":"chat"}`, `{"id":"1","to":"a","correlation_id":["x"],"kind":"k","payload":{"a":1e999},"zz":[]}`, `null`, `[]`, `{"kind":`, `{"kind":"a","kind":"b"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, fault := envelope.Parse(data)
		if fault != nil {
			if len(fault.Payload.JSON()) == 0 || fault.Status < 400 {
				t.Errorf("%q is refused without a payload", data)
			}
			return
		}
		e.From, e.HasFrom = "me", true
		p := &submission{Envelope: e, by: &member{name: "me", id: "me"}, at: time.Unix(0, 0)}
		p.fill()
		raw := p.AppendDelivery(nil, e.To)
		again, fault := envelope.Parse(raw)
		if fault != nil {
			t.Fatalf("%q became %q, which is refused: %s", data, raw, fault.Payload.JSON())
		}
		if again.Kind != e.Kind || again.From != "me" || again.ID == "" || fmt.Sprint(again.To) != fmt.Sprint(e.To) {
			t.Errorf("%q became %q", data, raw)
		}
		if out := again.AppendDelivery(nil, again.To); string(out) != string(raw) {
			t.Errorf("%q becomes %q the second time", raw, out)
		}
	})
}

// receive checks, logs and sends an envelope of m (MEW-56).
func (s *Space) receive(m *member, data []byte, transport string) (httpAnswer, *envelope.Refusal) {
	e, fault := envelope.Parse(data)
	s.mu.Lock()
	defer s.unlock()
	return s.handle(m, e, fault, transport)
}
