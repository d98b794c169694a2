package mess

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// waitEvent waits for an event about the approval queue, as an open page gets it.
func waitEvent(t *testing.T, events <-chan owner.Event, state string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case e := <-events:
			if e.Topic == owner.TopicApprovals && e.State == state {
				return
			}
		case <-deadline:
			t.Fatalf("nobody was told that a question is %s", state)
		}
	}
}

func (p *meshNode) countNotices(kind, text string) (n int) {
	p.t.Helper()
	list, _, err := p.node.Notices.List(p.t.Context(), "", 1000, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, notice := range list {
		if notice.Kind == kind && strings.Contains(notice.Text, text) {
			n++
		}
	}
	return n
}

// TestOwnerGetsNoticesOfQuestions: for every question of the exchange the owner gets one notice, and an open page sees
// the question come and go.
func TestOwnerGetsNoticesOfQuestions(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	home.executor("bob")
	events, stop := home.node.Watch()
	defer stop()
	ref := home.request(thread.OwnerID, "{intent: look into the fridge}")
	home.status("bob", ref, "needs_confirmation, action: eat it")
	waitEvent(t, events, "pending")
	asks, _, err := home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 || !strings.Contains(string(asks[0].Body), `"action":"eat it"`) {
		t.Errorf("asks = %+v, %v, want one that says what is to be confirmed", asks, err)
	}
	if n := home.countNotices("approval", "asks you to confirm"); n != 1 {
		t.Errorf("%d notices of the question, want one", n)
	}
	if n := home.countNotices("mess", ""); n != 0 {
		t.Errorf("and %d beside it", n)
	}
	home.do(thread.OwnerID, "- reply: {re: "+ref+", confirm: false}\n")
	waitEvent(t, events, "withdrawn")
}

// TestOwnerGetsNoticesOfRegistrations: the owner gets a notice of a pending registration, and its question is withdrawn
// when it is approved elsewhere.
func TestOwnerGetsNoticesOfRegistrations(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.Exchange = exchange.New(exchange.Config{Store: c.Store, Registration: "approval"})
	})
	events, stop := home.node.Watch()
	defer stop()
	e := echo.New()
	home.bridge.server.Mount(e)
	owner.Mount(e.Group("/owner"), home.bridge.server.Operations()...)
	call := func(path, body string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), "POST", path, strings.NewReader(body))
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		return w
	}
	if w := call("/api/v1/exchanges/home/register", `{"executor_id":"eve"}`); w.Code != 201 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	waitEvent(t, events, "pending")
	if n := home.countNotices("approval", "wants to join"); n != 1 {
		t.Errorf("%d notices, want one", n)
	}
	asks, _, err := home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 || !asks[0].Lasting {
		t.Fatalf("asks = %v, %v", asks, err)
	}
	if w := call("/owner/mess/exchange/executors/eve/approve", ""); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	waitEvent(t, events, "withdrawn")
	if _, err := home.node.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Reject, "test", time.Now()); !errors.Is(err, acl.ErrAskGone) {
		t.Errorf("a No to the old question: %v", err)
	}
	if c := home.bridge.x.Executors.Get("eve"); c == nil || c.Pending {
		t.Errorf("eve = %+v, want somebody who is in", c)
	}
}

// TestQuestionsShowTheRequest: a question to the owner shows the messages of the request, not only its intent.
func TestQuestionsShowTheRequest(t *testing.T) {
	home := newMeshNode(t, meshtest.New(t), "home", nil)
	ref := home.request("claude", "{intent: look, requires: [ladder], confirm_before: true, compensation: {shells: 5}, context: [the cellar]}")
	long := home.request("claude", "{intent: look, context: ["+strings.Repeat("'"+strings.Repeat("many words ", 900)+"', ", 9)+"x]}")
	for _, c := range []struct{ ref, kind, want string }{
		{ref, askHeld, `"shells":5`}, {ref, askHeld, `"confirm_before":true`}, {ref, askRoute, `"requires":["ladder"]`}, {ref, askRoute, "the cellar"},
		{ref, askRoute, `"agent_id":"am_x"`}, {long, askHeld, `"shortened":true`},
	} {
		changes, err := home.bridge.newQuestion(t.Context(), c.kind, home.thread(c.ref), askBody{Candidates: []Agent{{ID: "am_x"}}}, "a question")
		if err != nil {
			t.Fatal(err)
		}
		var shown strings.Builder
		for _, change := range changes {
			shown.Write(change.Record.Body)
		}
		if !strings.Contains(shown.String(), c.want) || shown.Len() > maxTask {
			t.Errorf("%s shows %.500s, want %s", c.kind, shown.String(), c.want)
		}
	}
}

// TestNoticesOfOneMillisecond: two units of one millisecond add notices of one thread, and neither replaces the other.
func TestNoticesOfOneMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.WantsNotices = func(id string) bool { return id == "alice" }
		ref := l.request("alice", "{intent: look}")
		for range 3 {
			l.status(thread.OwnerID, ref, "in_progress, message: so it goes")
		}
		var serials []int
		for n, err := range store.DecodeAll(t.Context(), l.store.Records(), exchange.NSNotices, "", time.Now(), exchange.DecodeNotice) {
			if err != nil {
				t.Fatal(err)
			}
			serials = append(serials, n.Serial)
		}
		if !slices.Equal(serials, []int{2, 3, 4}) {
			t.Errorf("notices of the messages %v: want one for each status, in the order in which they were said", serials)
		}
		l.store.Close()
	})
}

// TestNoticesOutliveTheProcess: a notice is stored with its transition, so a process that dies in between delivers it
// after the restart, once.
func TestNoticesOutliveTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		box := notify.New(notify.Config{Records: l.store.Records()})
		if _, err := New(Config{Exchange: l.Exchange, Store: l.store, Notices: box, Mesh: bridgetest.NewMesh(nil, l.store)}); err != nil {
			t.Fatal(err)
		}
		l.request("agent", "{intent: look}") // the process ends here: no notice was delivered yet
		again := labOn(t, l.store)
		if _, err := New(Config{Exchange: again.Exchange, Store: l.store, Notices: box, Mesh: bridgetest.NewMesh(nil, l.store)}); err != nil {
			t.Fatal(err)
		}
		count := func() int {
			t.Helper()
			list, _, err := box.List(context.Background(), "", 100, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		if count() != 0 {
			t.Fatal("it was told before")
		}
		for range 3 {
			again.workDue()
		}
		if n := count(); n != 1 {
			t.Errorf("it was told %d times", n)
		}
		// The notice names what the owner can do, and the commands do that.
		ask := again.request(thread.OwnerID, "{intent: look}")
		again.executor("bob")
		again.status("bob", ask, "needs_input, questions: [{field: q, question: Why?}]")
		again.workDue()
		list, _, err := box.List(t.Context(), "", 100, time.Now())
		if err != nil || !slices.ContainsFunc(list, func(n notify.Notice) bool {
			return strings.Contains(n.Title, ask) && n.Text == "answer it on the MESS page"
		}) {
			t.Errorf("notices = %+v, %v", list, err)
		}
	})
}

// TestUnsendableMessages: a peer gets the answer to a question whose field is a whole number. A result that does not
// fit in a message is refused. If a result is too large only with its files, the owner gets a notice.
func TestUnsendableMessages(t *testing.T) {
	mesh := meshtest.New(t)
	away := newMeshNode(t, mesh, "away", nil)
	away.executor("bob")
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Mesh = listAgents(c.Mesh, away.node.ID())
	})
	ref := home.request(thread.OwnerID, "{intent: look}")
	home.decide(askRoute, acl.Approve)
	there := away.waitMeshThread()
	away.status("bob", there, "claimed")
	away.status("bob", there, "needs_input, questions: [{field: '1', question: Where?}, {field: b, question: When?}]")
	home.waitStatus(ref, thread.NeedsInput)
	home.do(thread.OwnerID, "- reply: {re: "+ref+", answers: {'1': here, b: now}}")
	away.waitStatus(there, thread.InProgress)
	messages, err := away.Messages(t.Context(), there)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{`"value":"here"`, `"value":"now"`} {
		away.wantText(messages[len(messages)-2+i].Mess, want)
	}
	away.refuse(http.StatusRequestEntityTooLarge, "bob", "- response: {re: "+there+", content: [\""+strings.Repeat("x", 300<<10)+"\"]}")
	away.want(there, thread.InProgress)
	file, err := away.Upload(t.Context(), exchange.Owner("test"), there, "photo.png", bytes.Repeat([]byte("x"), 40<<10))
	if err != nil {
		t.Fatal(err)
	}
	away.do(thread.OwnerID, "- response: {re: "+there+", content: [\""+strings.Repeat("x", 240<<10)+"\", "+string(file.JSON())+"]}")
	eventually(t, "a notice to the owner", func() bool { return away.countNotices("mess", "payload must be at most") == 1 })
}

// TestHangingDirectory: while a look-up in the directory hangs, other notices are delivered. After it has failed, no other
// look-up is made until the pause ends.
func TestHangingDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		box := notify.New(notify.Config{Records: l.store.Records()})
		var lookups atomic.Int64
		if _, err := New(Config{Exchange: l.Exchange, Store: l.store, Notices: box, Mesh: directoryMesh{bridgetest.NewMesh(&refusingMesh{}, l.store), func(client.Query) ([]wire.Card, error) {
			lookups.Add(1)
			time.Sleep(30 * time.Second)
			return nil, wire.ErrUnavailable
		}}}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			l.request("agent", "{intent: look, requires: [ladder]}")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Work.Run(ctx); close(done) }()
		synctest.Wait()
		list, _, err := box.List(t.Context(), "", 100, time.Now())
		if err != nil || len(list) != 20 || lookups.Load() != 1 {
			t.Errorf("%d notices for the owner, %v, and %d look-ups; want 20, and one", len(list), err, lookups.Load())
		}
		time.Sleep(time.Hour)
		if n := lookups.Load(); n < 35 || n > 45 { // each hangs for half a minute, and is repeated after a minute
			t.Errorf("%d look-ups in an hour, want about 40", n)
		}
		cancel()
		<-done
	})
}
