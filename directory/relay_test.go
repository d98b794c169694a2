package directory

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/wire"
)

// mailboxCard is a card whose endpoint is its mailbox.
func mailboxCard(id string) wire.Value {
	return testCard(id, text("endpoint", testBase+"/mailbox/"+id))
}

// testMessage is a signed message; members change it before it is signed.
func testMessage(id, from, to string, members ...wire.Member) string {
	tree := wire.Draft{
		ID: wire.MessageID("msg_" + id), Conversation: "conv_1", From: wire.AgentID(from), To: wire.AgentID(to), Time: time.Now(),
		Intent: "mesh.message", Payload: wire.Obj(text("action", "deliver"), wire.Member{Key: "message", Value: wire.Obj(text("body", "hello"))}),
	}.Tree()
	for _, m := range members {
		tree = tree.With(m.Key, m.Value)
	}
	return signJSON(tree, from)
}

func signJSON(tree wire.Value, by string) string {
	tree, err := testKey(by).SignValue(tree)
	if err != nil {
		panic(err)
	}
	return string(tree.JSON())
}

// newRelayWorld has two mailboxes of Alice, one of Carol, and Bob, who has an address.
func newRelayWorld(t *testing.T) *world {
	w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHour: -1, PerHost: 1} })
	w.register(alice, mailboxCard("am_alice"))
	w.register(alice, mailboxCard("am_alice2")) // the same host: exempt from its quota (AM-66)
	w.register("carol-credential-3", mailboxCard("am_carol"))
	w.register(bob, testCard("am_bob"))
	return w
}

func (w *world) mail(token, query string) []mailbox.Item {
	w.t.Helper()
	got := w.do("GET", "/v1/relay?"+query, "", withBearer(token)...)
	var doc struct{ Messages []mailbox.Item }
	if err := json.Unmarshal(got.Body.Bytes(), &doc); err != nil || got.Code != 200 {
		w.t.Fatalf("mail ?%s = %d %s", query, got.Code, got.Body)
	}
	return doc.Messages
}

// wantReceipt checks that a message was stored, and returns its relay id.
func wantReceipt(t *testing.T, got *httptest.ResponseRecorder, status int) string {
	t.Helper()
	var doc struct {
		RelayID string `json:"relay_id"`
		Status  string
	}
	if err := json.Unmarshal(got.Body.Bytes(), &doc); err != nil || got.Code != status || doc.Status != "queued" || !strings.HasPrefix(doc.RelayID, "relay_") {
		t.Fatalf("answer = %d %s, want %d and a receipt", got.Code, got.Body, status)
	}
	return doc.RelayID
}

func TestRelay(t *testing.T) { // AM-64, AM-65
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		first := strings.Replace(testMessage("1", "am_bob", "am_alice"), `,"`, " ,\n\t\"", 3) // unusual white space: mail is kept byte for byte
		id := wantReceipt(t, w.do("POST", "/v1/relay", first, withBearer(bob)...), 201)
		time.Sleep(time.Second)
		other := testMessage("2", "am_bob", "am_alice2", text("conversation_id", "conv_2"))
		wantReceipt(t, w.do("POST", "/v1/relay", other, withBearer(bob)...), 201)
		all := w.mail(alice, "")
		if len(all) != 2 || string(all[0].Message) != first || all[0].RelayID != id || all[0].Created != "2000-01-01T00:00:00.000Z" || all[0].ReplyBy != "" {
			t.Errorf("mail %+v", all)
		}
		for query, want := range map[string]int{"limit=1": 1, "limit=1000": 2, "conversation=conv_2": 1, "agent_id=am_alice": 1, "conversation=conv_2&agent_id=am_alice": 0} {
			if got := w.mail(alice, query); len(got) != want {
				t.Errorf("?%s gives %d, want %d", query, len(got), want)
			}
		}
		if got := w.mail(bob, ""); len(got) != 0 {
			t.Errorf("others see %v", got)
		}
		want(t, w.do("GET", "/v1/relay?agent_id=am_alice", "", withBearer(bob)...), 403, "UNAUTHORIZED")
		want(t, w.do("GET", "/v1/relay", ""), 401, "UNAUTHORIZED")
		for _, query := range []string{"", "?wait=30", "?agent_id=am_alice"} {
			want(t, w.do("GET", "/v1/relay"+query, "", withBearer("a-token-of-nobody-here")...), 401, "UNAUTHORIZED")
		}
		want(t, w.do("GET", "/v1/relay?limit=0", "", withBearer(alice)...), 400, "INVALID_MESSAGE")
		want(t, w.do("GET", "/v1/relay?wait=31", "", withBearer(alice)...), 400, "INVALID_MESSAGE")
		// Without an acknowledgement the same mail comes again. A second acknowledgement gets the same response.
		if got := w.mail(alice, ""); len(got) != 2 {
			t.Errorf("the second time %d", len(got))
		}
		want(t, w.do("POST", "/v1/relay/"+id+"/ack", "", withBearer(bob)...), 404, "INVALID_MESSAGE")
		for range 2 {
			want(t, w.do("POST", "/v1/relay/"+id+"/ack", "", withBearer(alice)...), 200, "")
		}
		for _, wrong := range []string{"relay_x", "x", id[:len(id)-1] + "!"} {
			want(t, w.do("POST", "/v1/relay/"+wrong+"/ack", "", withBearer(alice)...), 404, "INVALID_MESSAGE")
		}
		if got := w.mail(alice, ""); len(got) != 1 || string(got[0].Message) != other {
			t.Errorf("after the acknowledgement: %v", got)
		}
		time.Sleep(mailbox.Life) // AM-68
		if got := w.mail(alice, ""); len(got) != 0 {
			t.Errorf("after a week: %v", got)
		}
	})
}

func TestRelayRefuses(t *testing.T) { // AM-64, AM-66
	w := newRelayWorld(t)
	good := testMessage("1", "am_bob", "am_alice")
	stale := text("timestamp", wire.FormatTime(time.Now().Add(-16*time.Minute)))
	for _, tt := range []struct {
		name, path, body string
		token            []string
		status           int
		code             string
	}{
		{"no bearer", "/v1/relay", good, nil, 401, "UNAUTHORIZED"},
		{"another's bearer", "/v1/relay", good, withBearer(alice), 403, "UNAUTHORIZED"},
		{"no JSON", "/v1/relay", "{", withBearer(bob), 400, "INVALID_MESSAGE"},
		{"no message", "/v1/relay", "{}", withBearer(bob), 400, "INVALID_MESSAGE"},
		{"to nobody", "/v1/relay", testMessage("1", "am_bob", "am_none"), withBearer(bob), 404, "AGENT_UNAVAILABLE"},
		{"of nobody", "/v1/relay", testMessage("1", "am_none", "am_alice"), withBearer(bob), 403, "UNAUTHORIZED"},
		{"unknown bearer", "/v1/relay", good, withBearer("a-token-of-nobody-here"), 401, "UNAUTHORIZED"},
		{"unknown bearer, of nobody", "/v1/relay", testMessage("1", "am_none", "am_alice"), withBearer("a-token-of-nobody-here"), 401, "UNAUTHORIZED"},
		{"forged", "/v1/relay", strings.Replace(good, "hello", "hullo", 1), withBearer(bob), 401, "INVALID_SIGNATURE"},
		{"forged, at the mailbox", "/v1/mailbox/am_alice", strings.Replace(good, "hello", "hullo", 1), nil, 401, "INVALID_SIGNATURE"},
		{"stale", "/v1/mailbox/am_alice", testMessage("1", "am_bob", "am_alice", stale), nil, 400, "INVALID_MESSAGE"},
		{"to another", "/v1/mailbox/am_carol", good, nil, 400, "INVALID_MESSAGE"},
		{"no such mailbox", "/v1/mailbox/am_none", good, nil, 404, "AGENT_UNAVAILABLE"},
		{"an agent with an address", "/v1/mailbox/am_bob", testMessage("1", "am_alice", "am_bob"), nil, 404, "AGENT_UNAVAILABLE"},
		{"too large", "/v1/mailbox/am_alice", `"` + strings.Repeat("x", wire.MaxMessage) + `"`, nil, 413, "INVALID_MESSAGE"},
		{"a reply that nobody waits for", "/v1/relay/relay_x/reply", "{}", withBearer(alice), 409, "INVALID_MESSAGE"},
	} {
		t.Run(tt.name, func(t *testing.T) { want(t, w.do("POST", tt.path, tt.body, tt.token...), tt.status, tt.code) })
	}
	if got := w.mail(alice, ""); len(got) != 0 {
		t.Errorf("of what was refused, %v is kept", got)
	}
	want(t, w.do("GET", "/v1/mailbox/am_alice", ""), 200, "")
	want(t, w.do("HEAD", "/v1/mailbox/am_alice", ""), 200, "")
	want(t, w.do("GET", "/v1/mailbox/am_bob", ""), 404, "")
}

// agent fetches mail as a connected agent does and answers what passes through. The test must call stop before its
// bubble ends.
func (w *world) agent(token string, answer func(mailbox.Item) (string, bool)) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			items, err := w.pollMail(ctx, token, mailbox.Query{Wait: maxWait})
			if err != nil {
				if ctx.Err() == nil {
					w.t.Errorf("mail: %v", err)
				}
				return
			}
			for _, item := range items {
				reply, ok := answer(item)
				if !ok {
					<-ctx.Done()
					return
				}
				if item.ReplyBy != "" && reply != "" {
					if got := w.do("POST", "/v1/relay/"+item.RelayID+"/reply", reply, withBearer(token)...); got.Code != 200 {
						w.t.Errorf("reply = %d %s", got.Code, got.Body)
					}
				}
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

func TestPassThrough(t *testing.T) { // AM-67
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		message := testMessage("1", "am_bob", "am_alice")
		var reply string
		stop := w.agent(alice, func(item mailbox.Item) (string, bool) {
			if string(item.Message) != message || item.ReplyBy == "" {
				t.Errorf("item %+v", item)
			}
			// A reply that does not match is refused, and the sender goes on waiting.
			for _, wrong := range []string{
				testMessage("r", "am_carol", "am_bob"), testMessage("r", "am_alice", "am_carol"), testMessage("r", "am_alice", "am_bob", text("conversation_id", "conv_9")), "{}",
			} {
				want(t, w.do("POST", "/v1/relay/"+item.RelayID+"/reply", wrong, withBearer(alice)...), 400, "INVALID_MESSAGE")
			}
			want(t, w.do("POST", "/v1/relay/"+item.RelayID+"/reply", reply, withBearer(bob)...), 409, "INVALID_MESSAGE")
			return reply, true
		})
		synctest.Wait()
		for _, tt := range []struct {
			reply  string
			status int
		}{
			{testMessage("r1", "am_alice", "am_bob"), 200},
			{testMessage("r2", "am_alice", "am_bob", wire.Member{Key: "payload", Value: wire.Obj(text("action", "pending_approval"))}), 202},
			{`{"error":{"code":"INTENT_NOT_SUPPORTED","message":"no","retry":false}}`, 422},
			{`{"error":{"code":"CONVERSATION_CLOSED","message":"no","retry":false}}`, 409},
			{`{"error":{"code":"UNAUTHORIZED","message":"no","retry":false}}`, 403},
			{`{"error":{"code":"RATE_LIMITED","message":"no","retry":true}}`, 429},
			{`{"error":{"code":"AGENT_UNAVAILABLE","message":"no","retry":true}}`, 503},
		} {
			reply = tt.reply
			got := send(w.edge.Handler(), "POST", "/v1/mailbox/am_alice", message)
			if got.Code != tt.status || got.Body.String() != tt.reply {
				t.Errorf("the sender gets %d %s, want %d %s", got.Code, got.Body, tt.status, tt.reply)
			}
			if isTemporary := tt.status == 429 || tt.status == 503; isTemporary != (got.Header().Get("Retry-After") != "") { // AM-28
				t.Errorf("%d has Retry-After %q", tt.status, got.Header().Get("Retry-After"))
			}
		}
		if left := w.mail(alice, ""); len(left) != 0 {
			t.Errorf("what passed through is kept: %v", left)
		}
		// The connection is the endpoint proof (AM-66).
		if rec, err := w.reg.Record(t.Context(), "am_alice"); err != nil || rec.Verification.Endpoint == nil || rec.Verification.Alive == nil {
			t.Errorf("verification %+v, %v", rec.Verification, err)
		}
		if rec, err := w.reg.Record(t.Context(), "am_carol"); err != nil || rec.Verification.Endpoint != nil {
			t.Errorf("who never connected has %+v, %v", rec.Verification, err)
		}
		stop()
		time.Sleep(mailbox.ConnectedFor + time.Second)
		// Without a connected agent the message goes to the mailbox at once.
		start := time.Now()
		wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", message), 202)
		if time.Since(start) != 0 {
			t.Errorf("with nobody connected it took %v", time.Since(start))
		}
		if left := w.mail(alice, ""); len(left) != 1 || string(left[0].Message) != message {
			t.Errorf("kept: %v", left)
		}
	})
}

// TestAnothersMailbox: a connection by the owner of a card is not a proof if the card names another agent's mailbox.
func TestAnothersMailbox(t *testing.T) { // AM-66
	w := newRelayWorld(t)
	w.register("mallory-credential", testCard("am_mallory", text("endpoint", testBase+"/mailbox/am_alice")))
	w.mail("mallory-credential", "agent_id=am_mallory&wait=0")
	for _, id := range []wire.AgentID{"am_mallory", "am_alice"} {
		if rec, err := w.reg.Record(t.Context(), id); err != nil || rec.Verification.Endpoint != nil {
			t.Errorf("%s: verification %+v, %v", id, rec.Verification, err)
		}
	}
	w.mail(alice, "agent_id=am_alice&wait=0")
	if rec, err := w.reg.Record(t.Context(), "am_alice"); err != nil || rec.Verification.Endpoint == nil {
		t.Errorf("its owner's connection: verification %+v, %v", rec.Verification, err)
	}
}

// TestAgentDiesMidCall: a message that an agent fetched but did not answer is stored, while the sender still waits.
func TestAgentDiesMidCall(t *testing.T) { // AM-67
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		var taken mailbox.Item
		stop := w.agent(alice, func(item mailbox.Item) (string, bool) { taken = item; return "", false })
		synctest.Wait()
		message := testMessage("1", "am_bob", "am_alice")
		start := time.Now()
		wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", message), 202)
		if took := time.Since(start); took != mailbox.ReplyWithin {
			t.Errorf("the sender waited %v, want %v", took, mailbox.ReplyWithin)
		}
		synctest.Wait()
		want(t, w.do("POST", "/v1/relay/"+taken.RelayID+"/reply", testMessage("r", "am_alice", "am_bob"), withBearer(alice)...), 409, "INVALID_MESSAGE")
		stop()
		if left := w.mail(alice, ""); len(left) != 1 || string(left[0].Message) != message {
			t.Errorf("kept: %v", left)
		}
		// The message of a sender that disconnects is stored too: the agent may have it already.
		time.Sleep(time.Minute)
		stop = w.agent("carol-credential-3", func(mailbox.Item) (string, bool) { return "", false })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/mailbox/am_carol", strings.NewReader(testMessage("2", "am_bob", "am_carol")))
		r.Header.Set("Content-Type", "application/json")
		w.edge.Handler().ServeHTTP(httptest.NewRecorder(), r)
		stop()
		if left := w.mail("carol-credential-3", ""); len(left) != 1 {
			t.Errorf("kept: %v", left)
		}
	})
}

func TestMailWakesThePoll(t *testing.T) { // AM-65
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		got := make(chan []mailbox.Item)
		go func() {
			items, err := w.pollMail(t.Context(), alice, mailbox.Query{Wait: maxWait})
			if err != nil {
				t.Error(err)
			}
			got <- items
		}()
		time.Sleep(7 * time.Second)
		start := time.Now()
		wantReceipt(t, w.do("POST", "/v1/relay", testMessage("1", "am_bob", "am_alice"), withBearer(bob)...), 201)
		if items := <-got; len(items) != 1 || time.Since(start) != 0 {
			t.Errorf("the poll gets %v after %v", items, time.Since(start))
		}
		if n := w.reg.relay.Connections().Count(); n != 0 {
			t.Errorf("%d are connected", n)
		}
	})
}

// TestPollsOfStrangers: an agent with an address may wait for mail too. Anybody can register such an agent, so the
// number of these waiting polls is bounded.
func TestPollsOfStrangers(t *testing.T) { // AM-65
	synctest.Test(t, func(t *testing.T) {
		w := newRelayWorld(t)
		const dora = "credential-of-dora"
		w.register(dora, testCard("am_dora", text("endpoint", "https://dora.example/agentmesh")))
		poll := func(token string) ([]mailbox.Item, time.Duration) {
			start := time.Now()
			items, err := w.pollMail(t.Context(), token, mailbox.Query{Wait: maxWait})
			if err != nil {
				t.Error(err)
			}
			return items, time.Since(start)
		}
		var strangers sync.WaitGroup
		for range mailbox.MaxStrangerPolls - 1 {
			strangers.Go(func() {
				if items, took := poll(dora); len(items) != 0 || took != maxWait {
					t.Errorf("a stranger's poll gets %v after %v", items, took)
				}
			})
		}
		strangers.Go(func() { // Bob has a card, but no mailbox
			if items, took := poll(bob); len(items) != 1 || took != time.Second {
				t.Errorf("the poll of an agent with an address gets %v after %v", items, took)
			}
		})
		synctest.Wait()
		if items, took := poll(dora); len(items) != 0 || took != 0 {
			t.Errorf("one poll too many gets %v after %v", items, took)
		}
		time.Sleep(time.Second)
		wantReceipt(t, w.do("POST", "/v1/relay", testMessage("1", "am_alice", "am_bob"), withBearer(alice)...), 201)
		strangers.Wait()
		if w.reg.relay.Connections().Strangers() != 0 {
			t.Errorf("%d strangers are counted when all have gone", w.reg.relay.Connections().Strangers())
		}
	})
}

func TestStatusOfErrors(t *testing.T) {
	var got []int
	for _, code := range []wire.Code{
		wire.InvalidMessage, wire.InvalidSignature, wire.IntentNotSupported, wire.RateLimited, wire.AgentUnavailable, wire.ConversationClosed, wire.Unauthorized, wire.OwnerRejected, "NEW",
	} {
		got = append(got, mailbox.StatusOf(code))
	}
	if want := []int{400, 401, 422, 429, 503, 409, 403, 403, 502}; !cmp.Equal(got, want) {
		t.Errorf("statuses %v, want %v", got, want)
	}
}
