package moltspeak

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func TestRates(t *testing.T) {
	r, n := newTestRig(t, nil)
	began, sent := time.Now(), 0
	for ; ; sent++ { // tokens come back meanwhile, however slow the machine is
		m, status := r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`))
		if status != http.StatusTooManyRequests {
			continue
		}
		hint, _ := m.P.Get("suggestion")
		if delay, ok := wholeOf(hint, "delay_ms"); !ok || delay <= 0 || hint.GetStr("action") != "retry_after" {
			t.Fatalf("limited: %s", m.P.JSON())
		}
		break
	}
	if most := 200 + int(time.Since(began).Minutes()*100) + 1; sent < 200 || sent > most {
		t.Errorf("%d messages were taken, want 200 to %d", sent, most)
	}
	if code := r.code(dog, r.draft(dog, message.OpPing, `{"nonce":1}`)); code != "" {
		t.Errorf("another agent: %s", code)
	}
	// A forged sender uses up no tokens of the real one.
	forged := r.draft(dog, message.OpPing, `{"nonce":1}`)
	for range 250 {
		r.sendRaw(cat, r.sign(cat, forged))
	}
	if code := r.code(dog, r.draft(dog, message.OpPing, `{"nonce":1}`)); code != "" || len(n.got) != 0 {
		t.Errorf("after 250 forgeries: %s", code)
	}
}

func TestStreams(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.shake(cat)
	send := func(p string) message.Code { t.Helper(); return r.code(cat, r.draft(cat, message.OpStream, p)) }
	chunk := func(id string, seq int, data string) string {
		return fmt.Sprintf(`{"action":"chunk","stream_id":"%s","seq":%d,"data":"%s"}`, id, seq, data)
	}
	send(`{"action":"start","stream_id":"s","type":"text"}`)
	for i, data := range []string{"one ", "two ", "three"} {
		if code := send(chunk("s", i+1, data)); code != "" {
			t.Errorf("chunk %d: %s", i, code)
		}
	}
	if code := send(`{"action":"end","stream_id":"s","total_chunks":3,"checksum":"` + message.Checksum(sha256.Sum256([]byte("one two three"))) + `"}`); code != "" || len(n.got) != 1 || n.got[0].Payload.GetStr("data") != "one two three" {
		t.Fatalf("the whole: %s, %d messages", code, len(n.got))
	}
	for name, steps := range map[string][]string{
		"gap": {chunk("x", 0, "a"), chunk("x", 2, "b")}, "repeat": {chunk("x", 0, "a"), chunk("x", 0, "b")}, "begins at 2": {chunk("x", 2, "a")},
		"checksum": {chunk("x", 0, "a"), `{"action":"end","stream_id":"x","checksum":"sha256:00"}`},
		"total":    {chunk("x", 0, "a"), `{"action":"end","stream_id":"x","total_chunks":2}`}, "65 KiB": {chunk("x", 0, strings.Repeat("a", message.MaxChunk+1))},
		"never begun": {chunk("y", 0, "a")},
	} {
		send(`{"action":"start","stream_id":"x"}`)
		code := message.Code("")
		for _, step := range steps {
			code = send(step)
		}
		if code != message.CodeInvalidParam {
			t.Errorf("%s: %q", name, code)
		}
		send(`{"action":"error","stream_id":"x"}`)
	}
	for i := range streamsPerPeer + 1 {
		if code := send(fmt.Sprintf(`{"action":"start","stream_id":"many%d"}`, i)); (code != "") != (i == streamsPerPeer) {
			t.Errorf("stream %d: %q", i, code)
		}
	}
	s := newStreams()
	now := time.Now()
	s.add(partFrom("p", true, nil, now), message.Stream{Action: "start", ID: "i"})
	s.add(partFrom("p", true, nil, now), message.Stream{Action: "chunk", ID: "i", Data: "x"})
	if _, e := s.add(partFrom("p", true, nil, now.Add(streamIdle)), message.Stream{Action: "chunk", ID: "i", Seq: 1, Data: "x"}); e == nil || s.bytes != 0 {
		t.Errorf("an idle stream lives on: %v, %d bytes", e, s.bytes)
	}
	if len(n.got) != 1 {
		t.Errorf("the node got %d messages", len(n.got))
	}
}

func TestTasks(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.shake(cat)
	r.say(cat, r.draft(cat, message.OpTask, `{"action":"create","task_id":"t1","type":"research","deadline":`+fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())+`}`))
	if n.got[0].Intent != IntentTask || time.Until(n.got[0].Deadline) > time.Hour || time.Until(n.got[0].Deadline) < 30*time.Minute {
		t.Fatalf("intent %s, deadline %s", n.got[0].Intent, n.got[0].Deadline)
	}
	if m, _ := r.say(cat, r.draft(cat, message.OpTask, `{"action":"status","task_id":"t1"}`)); !strings.Contains(string(m.P.JSON()), `"status":"pending"`) {
		t.Errorf("status: %s", m.P.JSON())
	}
	for _, act := range []string{"status", "cancel", "complete"} {
		if code := r.code(dog, r.draft(dog, message.OpTask, `{"action":"`+act+`","task_id":"t1"}`)); code != message.CodeInvalidParam {
			t.Errorf("%s by another: %q", act, code)
		}
	}
	r.say(cat, r.draft(cat, message.OpTask, `{"action":"cancel","task_id":"t1"}`))
	last := n.got[len(n.got)-1]
	if last.ConvID != n.got[0].ConvID || last.Payload.GetStr("action") != wire.ActionClose || last.Payload.GetStr("status") != "failed" {
		t.Errorf("cancel came as %s in %s", last.Payload.JSON(), last.ConvID)
	}
}

// TestDeadlines: the earlier of exp and deadline ends the conversation; a deadline in the past is refused (MS-33).
func TestDeadlines(t *testing.T) {
	r, n := newTestRig(t, nil)
	soon, later := time.Now().Add(time.Minute).Truncate(time.Millisecond), time.Now().Add(time.Hour).Truncate(time.Millisecond)
	for i, tt := range []struct{ exp, deadline, want time.Time }{
		{time.Time{}, time.Time{}, time.Time{}}, {soon, time.Time{}, soon}, {time.Time{}, later, later}, {soon, later, soon}, {later, soon, soon},
	} {
		p := fmt.Sprintf(`{"action":"create","task_id":"t%d"}`, i)
		if !tt.deadline.IsZero() {
			p = fmt.Sprintf(`{"action":"create","task_id":"t%d","deadline":%d}`, i, tt.deadline.UnixMilli())
		}
		d := r.draft(cat, message.OpTask, p)
		d.Expires = tt.exp
		if code := r.code(cat, d); code != "" || !n.got[i].Deadline.Equal(tt.want) {
			t.Errorf("exp %s, deadline %s: %s, the conversation ends %s, want %s", tt.exp, tt.deadline, code, n.got[i].Deadline, tt.want)
		}
	}
	past := fmt.Sprintf(`{"action":"create","task_id":"past","deadline":%d}`, time.Now().Add(-time.Second).UnixMilli())
	if code := r.code(cat, r.draft(cat, message.OpTask, past)); code != message.CodeInvalidParam {
		t.Errorf("a deadline that has passed: %q", code)
	}
}

// TestReChain: messages linked by re are one conversation (§10).
func TestReChain(t *testing.T) {
	r, n := newTestRig(t, nil)
	first := r.draft(cat, message.OpQuery, plainQuery)
	r.say(cat, first)
	second := r.draft(cat, message.OpQuery, plainQuery)
	second.Re = first.ID
	r.say(cat, second)
	other := r.draft(dog, message.OpQuery, plainQuery)
	other.Re = first.ID
	r.say(dog, other)
	if n.got[0].ConvID != n.got[1].ConvID || n.got[0].ConvID == n.got[2].ConvID {
		t.Errorf("conversations %s, %s, of another peer %s", n.got[0].ConvID, n.got[1].ConvID, n.got[2].ConvID)
	}
}

// TestQueryAboutTask: a query in the conversation of a task leaves the task open: it can still end or be canceled.
func TestQueryAboutTask(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.shake(cat)
	create := r.draft(cat, message.OpTask, `{"action":"create","task_id":"t1","type":"research"}`)
	r.say(cat, create)
	query := r.draft(cat, message.OpQuery, plainQuery)
	query.Re = create.ID
	r.say(cat, query)
	if n.got[1].ConvID != n.got[0].ConvID {
		t.Errorf("the query is in %s, want %s", n.got[1].ConvID, n.got[0].ConvID)
	}
	var conv convState
	key := convKey(n.got[0].Address, string(n.got[0].ConvID))
	if _, _, err := store.ReadRecord(t.Context(), r.b.records, nsConversations, key, &conv, time.Now()); err != nil || conv.Op != message.OpTask || conv.Done || conv.Re != query.ID {
		t.Errorf("the conversation is %+v, %v, want an open task that answers %s", conv, err, query.ID)
	}
	if code := r.code(cat, r.draft(cat, message.OpTask, `{"action":"cancel","task_id":"t1"}`)); code != "" {
		t.Errorf("the creator cannot cancel its task: %q", code)
	}
	if last := n.got[len(n.got)-1]; last.Payload.GetStr("action") != wire.ActionClose || last.Intent != IntentTask {
		t.Errorf("the cancel came as %s of %s", last.Payload.JSON(), last.Intent)
	}
}

// brokenRecords fails to read the record with one key.
type brokenRecords struct {
	store.Records
	ns, key string
}

func (b brokenRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if ns == b.ns && key == b.key {
		return store.Record{}, errors.New("broken")
	}
	return b.Records.Get(ctx, ns, key, now)
}

// TestReChainOfBrokenStore: a message whose re cannot be looked up opens no new conversation.
func TestReChainOfBrokenStore(t *testing.T) {
	r, n := newTestRig(t, nil)
	first := r.draft(cat, message.OpQuery, plainQuery)
	r.say(cat, first)
	whole := r.b.records
	for _, broken := range []brokenRecords{{whole, nsReplays, replayKey(first.From, first.ID)}, {whole, nsSent, "ours"}} {
		r.b.records = broken
		second := r.draft(cat, message.OpQuery, plainQuery)
		second.Re = first.ID
		if broken.ns == nsSent {
			second.Re = broken.key
		}
		if code := r.code(cat, second); code != message.CodeInternal || len(n.got) != 1 {
			t.Errorf("%s: code %q, and the node got %d messages", broken.ns, code, len(n.got))
		}
	}
}

// TestNodeRefuses: each refusal of the node has its code (§8).
func TestNodeRefuses(t *testing.T) {
	r, n := newTestRig(t, nil)
	for _, tt := range []struct {
		err  *wire.Error
		want message.Code
	}{{wire.ErrNotAllowed, message.CodeCapability}, {wire.ErrOwnerRejected, message.CodeCapability}, {wire.ErrRateLimited, message.CodeRateLimit}, {wire.ErrConversationClosed, message.CodeTaskFailed}, {wire.ErrUnavailable, message.CodeTimeout}, {wire.ErrIntent, message.CodeCapability}} {
		n.take = func(bridge.Inbound) (bridge.Outcome, error) { return bridge.Outcome{}, tt.err }
		d := r.draft(cat, message.OpQuery, plainQuery)
		if code := r.code(cat, d); code != tt.want {
			t.Errorf("%s: %s, want %s", tt.err.Row(), code, tt.want)
		}
		n.take, n.got = nil, nil
		if code := r.code(cat, d); code != "" {
			t.Errorf("%s: the same message later: %s", tt.err.Row(), code)
		}
	}
}

// TestHookRefuses: a message that the node accepted and a hook then refused is answered with an error, also at a repeat
// (MS-51).
func TestHookRefuses(t *testing.T) {
	r, n := newTestRig(t, nil)
	for _, tt := range []struct {
		out  bridge.Outcome
		want message.Code
	}{
		{bridge.Outcome{Status: http.StatusForbidden, Raw: wire.ErrOwnerRejected.AppendJSON(nil)}, message.CodeCapability},
		{bridge.Outcome{Status: http.StatusServiceUnavailable, Raw: wire.ErrUnavailable.AppendJSON(nil)}, message.CodeTimeout},
		{bridge.Outcome{Status: http.StatusServiceUnavailable}, message.CodeTimeout},
	} {
		n.take = func(bridge.Inbound) (bridge.Outcome, error) { return tt.out, nil }
		raw := r.sign(cat, r.draft(cat, message.OpQuery, plainQuery))
		for range 2 {
			m, status := r.sendRaw(cat, raw)
			if m.Op != message.OpError || message.Code(m.P.GetStr("code")) != tt.want || status < http.StatusBadRequest {
				t.Errorf("%d %s was answered %d %s %s", tt.out.Status, tt.out.Raw, status, m.Op, m.P.JSON())
			}
		}
		var conv convState
		in := n.got[len(n.got)-1]
		if _, _, err := store.ReadRecord(t.Context(), r.b.records, nsConversations, convKey(in.Address, string(in.ConvID)), &conv, time.Now()); err != nil || conv.Done {
			t.Errorf("after %d: %+v, %v", tt.out.Status, conv, err)
		}
	}
}

// TestCounterAtOnce: an AgentMesh payload that a hook answers at once, such as with a counter-proposal, leaves the
// conversation open on both sides until one of them closes it (§10).
func TestCounterAtOnce(t *testing.T) {
	const propose, counter = `{"action":"propose","terms":{"description":"d"}}`, `{"action":"counter","terms":{"description":"e"}}`
	there, n := newTestRig(t, nil)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":` + counter + `}`)}, nil
	}
	m, status := there.say(cat, there.draft(cat, message.OpTask, `{"action":"create","task_id":"t","type":"mesh.negotiate","params":`+propose+`}`))
	if status != http.StatusOK || m.P.GetStr("status") != "partial" {
		t.Errorf("the counter-proposal: %d %s", status, m.P.JSON())
	}
	here, mine := newTestRig(t, nil)
	here.reply = func(peer string, got wire.Value) []byte {
		d := here.draft(peer, message.OpRespond, string(m.P.JSON()))
		d.Re = got.GetStr("id")
		return here.sign(peer, d)
	}
	if _, err := here.b.Deliver(t.Context(), newDelivery(t, cat, wire.Negotiate, propose)); err != nil {
		t.Fatal(err)
	}
	if len(mine.got) != 1 || string(mine.got[0].Payload.Without("metadata").JSON()) != counter {
		t.Errorf("the node got %d messages: %+v", len(mine.got), mine.got)
	}
	closing := newDelivery(t, cat, wire.Negotiate, `{"action":"close","status":"completed"}`)
	closing.Message.Conversation = n.got[0].ConvID
	if _, err := there.b.Deliver(t.Context(), closing); err != nil {
		t.Fatal(err)
	}
	if m := there.receive(cat); m.P.GetStr("status") != "success" {
		t.Errorf("the close: %s", m.P.JSON())
	}
}
