package gateway

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestAnnouncedStream: participants of a drop-in space open and close streams of their own with any id that the gateway
// did not issue, and the gateway does not issue such an id later. The reference's stream scenario does this over HTTP
// (MEW-8). A hosted space refuses it.
func TestAnnouncedStream(t *testing.T) {
	cfg := newLabConfig(t)
	cfg.DropIn = true
	r := start(t, cfg)
	bob := r.Join("bob-token")
	say := func(want int, body string) {
		t.Helper()
		if got, answer := r.Post("alice", "alice-token", body); got != want {
			t.Errorf("%s: %d %s, want %d", body, got, answer, want)
		}
	}
	say(200, `{"kind":"stream/open","to":["bob"],"correlation_id":["r"],"payload":{"stream_id":"stream-1","encoding":"text"}}`)
	if got := bob.Until(envelope.KindStreamOpen); got.GetStr("from") != "alice" || mewtest.Text(mewtest.Payload(got, "stream_id")) != "stream-1" {
		t.Errorf("bob gets %s", got.JSON())
	}
	say(200, `{"kind":"stream/request","payload":{}}`)
	if got := mewtest.Text(mewtest.Payload(bob.Until(envelope.KindStreamOpen), "stream_id")); got != "stream-2" {
		t.Errorf("the gateway gives out %s, which must not be an id that a participant announced", got)
	}
	bob.Send(`#stream-1#data`) // the gateway does not transport its frames
	if got := bob.Until(envelope.KindError); mewtest.Text(mewtest.Payload(got, "error")) != "unauthorized_stream_write" {
		t.Errorf("a frame of an announced stream: %s", got.JSON())
	}
	say(403, `{"kind":"stream/open","payload":{"stream_id":"stream-2"}}`) // issued by the gateway
	say(200, `{"kind":"stream/close","payload":{"stream_id":"stream-1"}}`)
	bob.Until(envelope.KindStreamClose)
	say(200, `{"kind":"stream/close","payload":{"stream_id":"never-opened"}}`)
	say(200, `{"kind":"stream/close","payload":{"stream_id":"stream-2"}}`)
	say(404, `{"kind":"stream/close","payload":{"stream_id":"stream-2"}}`)
	say(200, `{"id":"so-3","kind":"stream/open","payload":{"stream_id":"stream-3"}}`)
	say(200, `{"kind":"stream/close","correlation_id":["so-3"],"payload":{"reason":"complete"}}`) // by its stream/open alone
	bob.Until(envelope.KindStreamClose)
	say(400, `{"kind":"stream/open","payload":{}}`)
	for n := range maxMemberStreams { // stream-1 was closed
		say(200, fmt.Sprintf(`{"kind":"stream/open","payload":{"stream_id":"stream-%d"}}`, 100+n))
	}
	say(400, `{"kind":"stream/open","payload":{"stream_id":"stream-99"}}`)
	for n := range maxMemberStreams + 1 { // the gateway never issues these ids, so it does not remember them
		id := fmt.Sprintf("own-%d", n)
		say(200, `{"kind":"stream/open","payload":{"stream_id":"`+id+`"}}`)
		say(200, `{"kind":"stream/close","payload":{"stream_id":"`+id+`"}}`)
	}

	strict := start(t, newLabConfig(t))
	if got, answer := strict.Post("alice", "alice-token", `{"kind":"stream/open","payload":{"stream_id":"mine"}}`); got != 400 {
		t.Errorf("in a hosted space: %d %s, want 400", got, answer)
	}
}

// TestStreamOpen: the gateway answers a stream request with an open before it delivers the request, and participants
// that join later learn everything about the stream (MEW-43, MEW-44, MEW-35).
func TestStreamOpen(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice, bob := r.Join("alice-token"), r.Join("bob-token")
	alice.Until("system/presence")
	request := `{"direction":"upload","description":"d","custom":{"n":12345678901234567890},"owner":"bob","stream_id":"stream-99","authorized_writers":["bob"],"created":"x","target":["bob"]}`
	alice.Send(`{"id":"s1","kind":"stream/request","to":["gateway"],"payload":` + request + `}`)
	for _, p := range []*mewtest.Player{alice, bob} {
		open := p.Want("stream/open")
		if open.GetStr("from") != "gateway" || string(mewtest.Get(open, "to").JSON()) != `["alice"]` || string(mewtest.Get(open, "correlation_id").JSON()) != `["s1"]` ||
			string(mewtest.Payload(open).JSON()) != `{"stream_id":"stream-1","encoding":"text","owner":"alice","authorized_writers":["alice"],"target":["bob"]}` {
			t.Errorf("open %s", open.JSON())
		}
		if req := p.Want("stream/request"); string(mewtest.Payload(req).JSON()) != request {
			t.Errorf("the request is passed on as %s", mewtest.Payload(req).JSON())
		}
	}
	w := r.Open("/ws", "admin-token").Want("system/welcome")
	list := mewtest.Payload(w, "active_streams")
	if list.Len() != 1 {
		t.Fatalf("active_streams %s", list.JSON())
	}
	st := list.At(0)
	if got := string(st.Without("created").JSON()); got != `{"direction":"upload","description":"d","custom":{"n":12345678901234567890},"target":["bob"],"stream_id":"stream-1","owner":"alice","authorized_writers":["alice"]}` {
		t.Errorf("active stream %s", got)
	}
	if _, err := time.Parse(time.RFC3339, st.GetStr("created")); err != nil {
		t.Errorf("created: %v", err)
	}
	status, body := r.Post("bob", "bob-token", `{"kind":"stream/request","payload":{"direction":"download"}}`)
	if status != 200 || !strings.Contains(body, `"status":"stream_opened","stream_id":"stream-2"`) {
		t.Errorf("by HTTP: %d %s", status, body)
	}
}

// TestStreamFrames: frames are delivered byte for byte with their own type, to everybody or to the target, and only
// from writers (MEW-45 to MEW-47).
func TestStreamFrames(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice, bob := r.Join("alice-token"), r.Join("bob-token")
	alice.Send(`{"kind":"stream/request","payload":{}}`)
	alice.Until("stream/request")
	bob.Until("stream/request")
	frames := []struct {
		typ  websocket.Type
		data string
	}{
		{websocket.BinaryType, "#stream-1#\x00\xff\x0a\x23#\x00"}, {websocket.TextType, "#stream-1#text ä"}, {websocket.BinaryType, "#stream-1#"},
		{websocket.BinaryType, "#stream-1#" + strings.Repeat("\x00", 1<<19)},
	}
	for _, f := range frames {
		alice.Conn.Send(websocket.Of(f.typ, []byte(f.data)))
		for _, p := range []*mewtest.Player{alice, bob} { // the writer gets its own frames too
			if typ, data := p.Next(); typ != f.typ || data != f.data {
				t.Errorf("a frame of type %d and %d bytes arrived as type %d and %d bytes", f.typ, len(f.data), typ, len(data))
			}
		}
	}
	for _, data := range []string{"#stream-1#bob", "#stream-9#x", "##x", "#a/b#x", "#\x1b[31m#x"} {
		bob.Conn.Send(websocket.Of(websocket.BinaryType, []byte(data)))
		e := bob.Want("system/error")
		if e.GetStr("from") != "gateway" || mewtest.Text(mewtest.Payload(e, "error")) != "unauthorized_stream_write" || strings.Contains(string(e.JSON()), "\x1b") {
			t.Errorf("%q: %s", data, e.JSON())
		}
	}
	alice.Conn.Send(websocket.Text([]byte("#stream-1#\xff"))) // would end every receiver's connection
	alice.Want("system/error")
	alice.Send(`{"kind":"stream/request","payload":{"target":["bob"]}}`)
	alice.Until("stream/request")
	bob.Until("stream/request")
	alice.Send("#stream-2#for bob")
	if _, data := bob.Next(); data != "#stream-2#for bob" {
		t.Errorf("the target got %q", data)
	}
	if extra := alice.Fence(); len(extra) > 0 {
		t.Errorf("not the target, and got %s", extra)
	}
}

// TestFrameAfterKick: a frame that the gateway has read before a kick is not delivered after it (MEW-30).
func TestFrameAfterKick(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice, bob := r.Join("alice-token"), r.Join("bob-token")
	alice.Send(`{"kind":"stream/request","payload":{}}`)
	bob.Until("stream/request")
	s := r.G.Space("lab")
	s.mu.Lock()
	ses := s.members.byName["alice"].session
	s.mu.Unlock()
	r.Post("admin", "admin-token", `{"kind":"space/kick","payload":{"participant_id":"alice"}}`)
	s.handleFrame(ses, "stream-1", websocket.TextType, []byte("#stream-1#late"))
	for _, got := range bob.Fence() {
		if strings.HasPrefix(got, "#") {
			t.Errorf("after the kick bob got %s", got)
		}
	}
}

// TestStreamWriters checks writers, owners and the notices about them, which are the same on both transports (MEW-49 to
// MEW-51).
func TestStreamWriters(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice, bob, admin := r.Join("alice-token"), r.Join("bob-token"), r.Join("admin-token")
	alice.Send(`{"kind":"stream/request","payload":{}}`)
	admin.Until("stream/request")
	order := func(by, kind, payload string) (int, string) {
		return r.Post(by, by+"-token", `{"id":"o","kind":"stream/`+kind+`","payload":{"stream_id":"stream-1",`+payload+`}}`)
	}
	for _, tt := range []struct {
		by, kind, payload string
		status            int
		body              string // contained
		notice, content   string
	}{
		{"alice", "grant-write", `"participant_id":"bob","reason":"turn"`, 200, `"status":"granted","stream_id":"stream-1","authorized_writers":["alice","bob"]`,
			"stream/write-granted", `{"stream_id":"stream-1","participant_id":"bob","authorized_writers":["alice","bob"],"reason":"turn"}`},
		{"alice", "grant-write", `"participant_id":"bob"`, 200, `"authorized_writers":["alice","bob"]`,
			"stream/write-granted", `{"stream_id":"stream-1","participant_id":"bob","authorized_writers":["alice","bob"]}`},
		{"alice", "grant-write", `"participant_id":"nobody"`, 404, `participant_not_found`, "", ""},
		{"bob", "grant-write", `"participant_id":"admin"`, 403, `unauthorized`, "", ""},
		{"alice", "revoke-write", `"participant_id":"alice"`, 400, `invalid_operation`, "", ""},
		{"alice", "revoke-write", `"participant_id":"bob"`, 200, `"status":"revoked","stream_id":"stream-1","authorized_writers":["alice"]`,
			"stream/write-revoked", `{"stream_id":"stream-1","participant_id":"bob","authorized_writers":["alice"]}`},
		{"alice", "revoke-write", `"participant_id":"nobody"`, 200, `"authorized_writers":["alice"]`,
			"stream/write-revoked", `{"stream_id":"stream-1","participant_id":"nobody","authorized_writers":["alice"]}`},
		{"alice", "transfer-ownership", `"new_owner":"nobody"`, 404, `participant_not_found`, "", ""},
		{"alice", "transfer-ownership", `"new_owner":"bob"`, 200, `"status":"transferred","stream_id":"stream-1","previous_owner":"alice","new_owner":"bob","authorized_writers":["bob"]`,
			"stream/ownership-transferred", `{"stream_id":"stream-1","previous_owner":"alice","new_owner":"bob","authorized_writers":["bob"]}`},
		{"alice", "transfer-ownership", `"new_owner":"alice"`, 403, `unauthorized`, "", ""},
	} {
		status, body := order(tt.by, tt.kind, tt.payload)
		if status != tt.status || !strings.Contains(body, tt.body) {
			t.Errorf("%s by %s with %s: %d %s, want %d %s", tt.kind, tt.by, tt.payload, status, body, tt.status, tt.body)
		}
		if tt.notice == "" {
			continue
		}
		_, s := admin.Next() // the envelope itself is not delivered
		n := mewtest.Parse(t, s)
		if n.GetStr("kind") != tt.notice || n.GetStr("from") != "gateway" || string(mewtest.Payload(n).JSON()) != tt.content {
			t.Errorf("notice %s, want %s %s", s, tt.notice, tt.content)
		}
	}
	alice.Fence()
	alice.Send("#stream-1#no more")
	alice.Until("system/error")
	bob.Send(`{"kind":"stream/grant-write","payload":{"stream_id":"stream-1","participant_id":"alice"}}`)
	admin.Until("stream/write-granted")
	alice.Quit() // a writer that leaves is no longer a writer
	if n := admin.Until("stream/write-revoked"); mewtest.Text(mewtest.Payload(n, "participant_id")) != "alice" {
		t.Errorf("got %s", n.JSON())
	}
}

// TestTransferToAFullOwner: a participant with the maximum number of streams, or with too long descriptions, cannot
// get another stream (MEW-Q4). The stream stays with its owner.
func TestTransferToAFullOwner(t *testing.T) {
	r := start(t, newLabConfig(t))
	r.Join("alice-token")
	r.Join("bob-token")
	say := func(by, body string) (int, string) { return r.Post(by, by+"-token", body) }
	open := func(by, description string) (id string) {
		code, body := say(by, `{"kind":"stream/request","payload":{"description":"`+description+`"}}`)
		if code != 200 {
			t.Fatalf("a stream of %s: %d %s", by, code, body)
		}
		return mewtest.Parse(t, body).GetStr("stream_id")
	}
	give := func(id string) (int, string) {
		return say("alice", `{"kind":"stream/transfer-ownership","payload":{"stream_id":"`+id+`","new_owner":"bob"}}`)
	}
	long := strings.Repeat("x", maxDescription-4096)
	for range 3 {
		open("bob", long)
	}
	for range maxMemberStreams - 4 {
		open("bob", "")
	}
	if code, body := give(open("alice", long)); code != 400 || !goldentest.Says(t, "too long", body[strings.Index(body, `"payload":`):]) {
		t.Errorf("a description beyond the bound of bob: %d %.200s", code, body)
	}
	if code, body := give(open("alice", "")); code != 200 {
		t.Errorf("the last stream that bob may have: %d %s", code, body)
	}
	more := open("alice", "")
	if code, body := give(more); code != 400 || !goldentest.Says(t, "too many", body[strings.Index(body, `"payload":`):]) {
		t.Errorf("one stream too many: %d %s", code, body)
	}
	if code, body := say("alice", `{"kind":"stream/close","payload":{"stream_id":"`+more+`"}}`); code != 200 {
		t.Errorf("alice closes what is still hers: %d %s", code, body)
	}
}

// TestStreamClose: a stream is closed by its id, its request or its open, and only by its owner, a writer or a target
// (MEW-48).
func TestStreamClose(t *testing.T) {
	r := start(t, newLabConfig(t))
	alice, bob := r.Join("alice-token"), r.Join("bob-token")
	alice.Until("system/presence")
	open := func(payload string) string {
		alice.Send(`{"id":"req","kind":"stream/request","payload":` + payload + `}`)
		o := alice.Until("stream/open")
		alice.Until("stream/request")
		return o.GetStr("id")
	}
	for _, tt := range []struct {
		name, by, payload, request string
		byOpen                     bool
	}{
		{"id", "alice", `{"stream_id":"stream-1"}`, `{}`, false},
		{"request", "alice", ``, `{}`, false},
		{"open", "alice", ``, `{}`, true},
		{"target", "bob", ``, `{"target":["bob"]}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := open(tt.request)
			closing := `{"kind":"stream/close","correlation_id":["req"],"payload":{"reason":"complete"}}`
			if tt.byOpen {
				closing = `{"kind":"stream/close","correlation_id":["` + id + `"],"payload":{"reason":"complete"}}`
			}
			if tt.payload != "" {
				closing = `{"kind":"stream/close","payload":` + tt.payload + `}`
			}
			if status, body := r.Post(tt.by, tt.by+"-token", closing); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			alice.Until("stream/close")
			if n := len(r.G.Space("lab").View().Streams); n != 0 {
				t.Errorf("%d streams are left", n)
			}
		})
	}
	open(`{}`)
	older := r.G.Space("lab").View().Streams
	open(`{}`)
	if status, _ := r.Post("bob", "bob-token", `{"kind":"stream/close","correlation_id":["req"]}`); status != 403 {
		t.Errorf("a bystander closed a stream: %d", status)
	}
	if status, body := r.Post("alice", "alice-token", `{"kind":"stream/close","correlation_id":["req"]}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	alice.Until("stream/close")
	if left := r.G.Space("lab").View().Streams; fmt.Sprintf("%s", left) != fmt.Sprintf("%s", older) {
		t.Errorf("of two streams with one request id, %s is left, want the older one, %s", left, older)
	}
	bob.Quit()
}

// TestOrphanedStream: the stream of an owner that left waits five minutes for the owner (MEW-52).
func TestOrphanedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newQuietSpace(t, newLabConfig(t))
		say(s, "alice", `{"kind":"stream/request","payload":{}}`) // over HTTP: alice is not connected
		feed := s.Watch()
		defer feed.Close()
		time.Sleep(maxOwnerAbsence - time.Second)
		s.tick(time.Now())
		if len(s.streams.open) != 1 {
			t.Fatal("the stream ended too early")
		}
		time.Sleep(2 * time.Second)
		s.tick(time.Now())
		if len(s.streams.open) != 0 {
			t.Fatal("the stream did not end")
		}
		if raw := string(<-feed.C()); !strings.Contains(raw, `"kind":"stream/close"`) || !strings.Contains(raw, `"reason":"timeout"`) {
			t.Errorf("the space got %s", raw)
		}
	})
}

func FuzzSplitFrame(f *testing.F) {
	f.Add([]byte("#stream-1#data"))
	f.Add([]byte("##"))
	f.Add([]byte("#"))
	f.Add([]byte(`{"kind":"chat"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		id, ok := frameStreamID(data)
		if !ok {
			return
		}
		head := "#" + id + "#"
		if strings.Contains(id, "#") || string(data[:len(head)]) != head {
			t.Errorf("frameStreamID(%q) = %q", data, id)
		}
	})
}

// TestAnnouncedStreamsEnd: a participant that closes the streams that it announced can announce others (MEW-8).
func TestAnnouncedStreamsEnd(t *testing.T) {
	cfg := newLabConfig(t)
	cfg.DropIn = true
	s := newQuietSpace(t, cfg)
	for n := range 2 * maxMemberStreams {
		id := fmt.Sprintf(`{"stream_id":"stream-%d"}`, 1000+n)
		if fault := say(s, "alice", fmt.Sprintf(`{"id":"o%d","kind":"stream/open","payload":%s}`, n, id)); fault != "" {
			t.Fatalf("stream %d: %s", n, fault)
		}
		byOpen := fmt.Sprintf(`{"kind":"stream/close","correlation_id":["o%d"]}`, n)
		say(s, "bob", `{"kind":"stream/close","payload":`+id+`}`) // these two have no effect
		say(s, "bob", byOpen)
		if len(s.streams.announced) != 1 {
			t.Fatalf("bob ended a stream of alice")
		}
		if n%2 == 0 {
			say(s, "alice", byOpen)
		} else {
			say(s, "alice", `{"kind":"stream/close","payload":`+id+`}`)
		}
	}
}
