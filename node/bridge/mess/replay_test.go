package mess

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const contentType = "Content-Type"

// TestSentAgain: a call that is repeated with the same Idempotency-Key, because its answer was lost, gets the same
// answer and changes nothing.
func TestSentAgain(t *testing.T) {
	s := newHTTPLab(t, nil)
	bob, agent := s.register("bob"), s.register("agent")
	again := func(status int, key, method, path, body, name string, headers ...string) string {
		t.Helper()
		got, first := s.call(key, method, path, body, append(headers, "Idempotency-Key", name)...)
		if got != status {
			t.Fatalf("%s %s: %d %s, want %d", method, path, got, first, status)
		}
		time.Sleep(2 * time.Millisecond) // a second answer would have another time
		got, second := s.call(key, method, path, body, append(headers, "Idempotency-Key", name)...)
		if got != status || second != first {
			t.Errorf("%s %s again: %d %s, want %s", method, path, got, second, first)
		}
		return first
	}
	threads := func() int { return len(s.Refs(func(string) bool { return true })) }

	again(201, agent, "POST", "requests", `{"intent":"come and look"}`, "k1")
	again(201, agent, "POST", "messages", `[{"request":{"intent":"come"}},{"request":{"intent":"look"}},{"query":{"type":"status"}}]`, "k2", contentType, "application/json")
	if n := threads(); n != 3 {
		t.Fatalf("%d threads, want 3", n)
	}
	again(201, bob, "POST", "requests", `{"intent":"come and look"}`, "k1") // of another executor
	again(201, agent, "POST", "requests", `{"intent":"come and look"}`, "k3")
	if n := threads(); n != 5 {
		t.Fatalf("%d threads, want 5", n)
	}

	ref := s.request("agent", "{intent: dig}")
	again(200, bob, "PATCH", "requests/"+ref, `{"status":"claimed"}`, "claim")
	again(200, bob, "PATCH", "requests/"+ref, `{"status":"in_progress","message":"half of it"}`, "half", "If-Match", fmt.Sprintf("%q", fmt.Sprint(s.lab.thread(ref).Serial)))
	serial := s.lab.thread(ref).Serial
	again(200, bob, "PATCH", "requests/"+ref, `{"status":"completed","message":"done"}`, "done")
	if th := s.lab.want(ref, thread.Completed); th.Serial != serial+1 {
		t.Errorf("%d messages, want %d", th.Serial, serial+1)
	}
	again(200, bob, "PATCH", "requests/"+ref, `{"status":"in_progress","message":"half of it"}`, "half", "If-Match", `"1"`) // as it was then

	no := s.request("agent", "{intent: swim}")
	carol := s.register("carol")
	again(200, carol, "PATCH", "requests/"+no, `{"status":"declined"}`, "no") // and does not see the thread any more

	for name, c := range map[string]struct {
		path, body, key string
		status          int
	}{
		"other words":    {"requests", `{"intent":"another thing"}`, "k1", 422},
		"another route":  {"messages", `[{"request":{"intent":"come and look"}}]`, "k1", 422},
		"no name":        {"requests", `{"intent":"come"}`, "", 400},
		"a control":      {"requests", `{"intent":"come"}`, "a\tb", 400},
		"a long name":    {"requests", `{"intent":"come"}`, strings.Repeat("x", 256), 400},
		"what is no key": {"requests", `{"intent":"come"}`, "é", 400},
	} {
		before := threads()
		if got, text := s.call(agent, "POST", c.path, c.body, contentType, "application/json", "Idempotency-Key", c.key); got != c.status || threads() != before {
			t.Errorf("%s: %d %s, want %d", name, got, text, c.status)
		}
	}

	// A refused call is judged again, and an accepted one is known after a restart.
	late := s.request("agent", "{intent: late}")
	s.want(409, bob, "PATCH", "requests/"+late, `{"status":"expired"}`, "Idempotency-Key", "late")
	again(200, bob, "PATCH", "requests/"+late, `{"status":"claimed"}`, "late")
	s.server.Exchange = labOn(t, s.store).Exchange
	if got, text := s.call(bob, "PATCH", "requests/"+late, `{"status":"claimed"}`, "Idempotency-Key", "late"); got != 200 || !strings.Contains(text, late) {
		t.Errorf("after a restart: %d %s", got, text)
	}
	if th := s.lab.thread(late); th.Serial != 2 {
		t.Errorf("%d messages, want 2", th.Serial)
	}
}

// TestSentAgainAtOnce: concurrent copies of a call have the effect of one call.
func TestSentAgainAtOnce(t *testing.T) {
	s := newHTTPLab(t, nil)
	agent := s.register("agent")
	answers := make([]string, 16)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			status, text := s.call(agent, "POST", "messages", `[{"request":{"intent":"come"}}]`, contentType, "application/json", "Idempotency-Key", "k")
			answers[i] = fmt.Sprint(status, " ", text)
		})
	}
	all.Wait()
	for _, a := range answers {
		if a != answers[0] || !strings.HasPrefix(a, "201 ") {
			t.Errorf("answered %s and %s", answers[0], a)
		}
	}
	if n := len(s.Refs(func(string) bool { return true })); n != 1 {
		t.Errorf("%d threads", n)
	}
}

// TestKeptAnswersAreBounded: the stored answers are bounded in number, size and time.
func TestKeptAnswersAreBounded(t *testing.T) {
	s := newHTTPLab(t, nil)
	agent, bob := s.register("agent"), s.register("bob")
	const body = `[{"request":{"intent":"come"}}]`
	s.want(201, agent, "POST", "messages", body, contentType, "application/json", "Idempotency-Key", "first")
	first, err := s.store.Records().Get(t.Context(), exchange.NSSeen, "call/"+wire.HashOf("agent", "first"), time.Now())
	if err != nil || len(first.Terms) != 1 {
		t.Fatalf("%+v, %v", first.Terms, err)
	}
	if _, err := s.store.Records().Get(t.Context(), exchange.NSSeen, first.Key, first.Expires); !errors.Is(err, store.ErrNotFound) || time.Until(first.Expires) > 24*time.Hour+time.Minute {
		t.Errorf("after a day: %v, kept until %v", err, first.Expires)
	}
	var changes []store.Change
	for i := 1; i < 10_000; i++ {
		rec := first
		rec.Key, rec.Body = fmt.Sprintf("call/%d", i), []byte("{}")
		if changes = append(changes, store.Change{Record: rec}); len(changes) == 500 || i == 10_000-1 {
			if err := s.store.Records().Apply(t.Context(), changes, time.Now()); err != nil {
				t.Fatal(err)
			}
			changes = nil
		}
	}
	before := len(s.Refs(func(string) bool { return true }))
	s.want(429, agent, "POST", "messages", body, contentType, "application/json", "Idempotency-Key", "one too many")
	s.want(201, agent, "POST", "messages", body, contentType, "application/json", "Idempotency-Key", "first")
	if n := len(s.Refs(func(string) bool { return true })); n != before {
		t.Errorf("%d threads were made", n-before)
	}
	s.want(201, agent, "POST", "messages", body, contentType, "application/json")
	s.want(201, bob, "POST", "messages", body, contentType, "application/json", "Idempotency-Key", "his own")

	// An answer that is too large to be stored is computed again, if its call changes nothing.
	for i := range 600 {
		s.request("agent", fmt.Sprintf("{intent: %s%d}", strings.Repeat("x", 490), i))
	}
	s.want(200, bob, "POST", "messages", `[{"query":{"type":"status"}}]`, contentType, "application/json", "Idempotency-Key", "look")
	before = len(s.Refs(func(string) bool { return true }))
	s.want(413, bob, "POST", "messages", `[{"request":{"intent":"come"}},{"query":{"type":"status"}}]`, contentType, "application/json", "Idempotency-Key", "both")
	if n := len(s.Refs(func(string) bool { return true })); n != before {
		t.Errorf("%d threads were made", n-before)
	}
}

// crashingStore is a store whose process ends after it has written a thread.
type crashingStore struct {
	store.Store
	dead *bool
}

type crashingRecords struct {
	store.Records
	dead *bool
}

func (d crashingStore) Records() store.Records { return crashingRecords{d.Store.Records(), d.dead} }

func (d crashingRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if *d.dead {
		return store.ErrUnavailable
	}
	for _, c := range changes {
		*d.dead = *d.dead || c.Record.NS == exchange.NSThreads
	}
	return d.Records.Apply(ctx, changes, now)
}

// TestReceivedAgainAfterACrash: a repeated message of the mesh is answered with the ref of its thread, even if the
// process died as soon as the thread was stored.
func TestReceivedAgainAfterACrash(t *testing.T) {
	l := newLab(t)
	dead := false
	list := mustParse(t, "- request: {intent: come}\n- request: {id: b, intent: look}\n").Tree()
	m := bridge.Call{From: "am_peer", Conv: "conv_1", ID: "msg_1", Payload: wire.Obj(wire.Field("mess", list))}
	receive := func(s store.Store) (wire.Value, error) {
		t.Helper()
		b, err := New(Config{Exchange: labOn(t, s).Exchange, Store: s, Mesh: bridgetest.NewMesh(nil, s)})
		if err != nil {
			t.Fatal(err)
		}
		return b.Receive(t.Context(), m)
	}
	_, _ = receive(crashingStore{l.store, &dead}) // this answer is lost
	if !dead {
		t.Fatal("it did not die")
	}
	answer, err := receive(l.store)
	if err != nil {
		t.Fatal(err)
	}
	page, err := labOn(t, l.store).List(t.Context(), exchange.Owner("test"), "", "", 10)
	if err != nil || len(page.Threads) != 2 {
		t.Fatalf("%d threads, %v", len(page.Threads), err)
	}
	for _, th := range page.Threads {
		if !strings.Contains(string(answer.JSON()), th.Ref) {
			t.Errorf("the answer %s does not name %s", answer.JSON(), th.Ref)
		}
	}
}

// TestFirstMessageAfterAStart: the first message after a start is about a thread that the peer opened before, and uses
// the peer's own name for it. The conversation says which thread that is.
func TestFirstMessageAfterAStart(t *testing.T) {
	l := newLab(t)
	for i, text := range []string{"- request: {intent: look}", "- cancel: {re: theirs, reason: seen}"} {
		b, err := New(Config{Exchange: labOn(t, l.store).Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store)})
		if err != nil {
			t.Fatal(err)
		}
		payload := wire.Obj(wire.Field("mess", mustParse(t, text).Tree()))
		m := bridge.Call{From: "am_peer", Conv: "conv_1", ID: []wire.MessageID{"msg_1", "msg_2"}[i], Payload: payload}
		if _, err := b.Receive(t.Context(), m); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
