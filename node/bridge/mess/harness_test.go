package mess

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// lab is an exchange on a real database, with helpers that fail the test.
type lab struct {
	*exchange.Exchange
	t     testing.TB
	store store.Store
}

func newLab(t testing.TB) *lab {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mess.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return labOn(t, s)
}

func labOn(t testing.TB, s store.Store) *lab {
	s = store.Observe(s)
	return &lab{t: t, store: s, Exchange: exchange.New(exchange.Config{Store: s, ThreadsPerHour: -1, CallsPerMinute: -1, RegistrationsPerHour: -1})}
}

func actor(id string) exchange.Actor {
	if id == thread.OwnerID {
		return exchange.Owner("test")
	}
	return exchange.Actor{ID: id, Channel: "test"}
}

// workDue does what is due now. Call it in a bubble of synctest.
func (l *lab) workDue() {
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan struct{})
	go func() { l.Work.Run(ctx); close(done) }()
	synctest.Wait()
	cancel()
	<-done
}

// do sends a block that must be accepted.
func (l *lab) do(who, block string) exchange.Result {
	l.t.Helper()
	r, err := l.try(who, block)
	if err != nil {
		l.t.Fatalf("%s sends %s: %v", who, block, err)
	}
	return r
}

func (l *lab) try(who, block string) (exchange.Result, error) {
	l.t.Helper()
	return l.Do(l.t.Context(), actor(who), mustParse(l.t, block), exchange.Options{})
}

// refuse sends a block that must be refused with this HTTP status.
func (l *lab) refuse(status int, who, block string) {
	l.t.Helper()
	_, err := l.try(who, block)
	if got := statusOf(err); got != status {
		l.t.Errorf("%s sends %s: %d (%v), want %d", who, block, got, err, status)
	}
}

func statusOf(err error) int {
	if err == nil {
		return 200
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Status
	}
	return 500
}

func (l *lab) executor(id string, capabilities ...string) {
	l.t.Helper()
	l.do(thread.OwnerID, "- config:\n    executor: {id: "+id+", capabilities: ["+strings.Join(capabilities, ", ")+"]}\n")
}

func (l *lab) request(who, body string) string {
	l.t.Helper()
	return l.do(who, "- request: "+body+"\n").Created[0]
}

// status sets the status of a thread; rest is the code and further members.
func (l *lab) status(who, ref, rest string) {
	l.t.Helper()
	l.do(who, "- status: {re: "+ref+", code: "+rest+"}\n")
}

func (l *lab) thread(ref string) *thread.Thread {
	l.t.Helper()
	th, err := l.Thread(l.t.Context(), exchange.Owner("test"), ref)
	if err != nil {
		l.t.Fatalf("thread %s: %v", ref, err)
	}
	return th
}

func (l *lab) want(ref string, code thread.Code) *thread.Thread {
	l.t.Helper()
	th := l.thread(ref)
	if th.Status != code {
		l.t.Errorf("thread %s is %s, want %s", ref, th.Status, code)
	}
	return th
}

func answerOf(r exchange.Result, kind string) wire.Value {
	for _, e := range r.Answers {
		if e.Type == kind {
			return e.Body
		}
	}
	return wire.Value{}
}

func mustParse(t testing.TB, text string) thread.Block {
	t.Helper()
	b, err := thread.Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%.200q): %v", text, err)
	}
	return b
}

func (l *lab) keys(ns string) (keys []string) {
	l.t.Helper()
	for after := ""; ; {
		page, err := l.store.Records().List(l.t.Context(), ns, "", after, 1000, time.Now())
		if err != nil {
			l.t.Fatal(err)
		}
		for _, rec := range page.Records {
			keys = append(keys, rec.Key)
		}
		if after = page.Next; after == "" {
			return keys
		}
	}
}

// eventually waits until done reports true, for a change that another goroutine makes.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !done() {
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("%s did not happen", what)
		}
	}
}

func (l *lab) readRequest(who, ref string) wire.Value {
	l.t.Helper()
	th, err := l.Thread(l.t.Context(), actor(who), ref)
	if err != nil {
		l.t.Fatalf("%s reads %s: %v", who, ref, err)
	}
	messages, err := l.Messages(l.t.Context(), th.Ref)
	if err != nil {
		l.t.Fatal(err)
	}
	body, _ := messages[0].Mess.At(0).Get("request")
	return body
}

// wantText checks that a request contains these texts, in JSON.
func (l *lab) wantText(body wire.Value, want ...string) {
	l.t.Helper()
	for _, text := range want {
		if !strings.Contains(string(body.JSON()), text) {
			l.t.Errorf("%s does not say %s", body.JSON(), text)
		}
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
