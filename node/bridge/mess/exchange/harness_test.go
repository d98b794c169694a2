package exchange

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// lab is an exchange on a real database, with helpers that fail the test.
type lab struct {
	*Exchange
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
	return &lab{t: t, store: s, Exchange: New(Config{Store: s, ThreadsPerHour: -1, CallsPerMinute: -1, RegistrationsPerHour: -1})}
}

func actor(id string) Actor {
	if id == thread.OwnerID {
		return Owner("test")
	}
	return Actor{ID: id, Channel: "test"}
}

// workDue does what is due in the threads.
func (l *lab) workDue() {
	l.t.Helper()
	rows, _, err := l.store.Records().Due(l.t.Context(), NSThreads, time.Now(), nil, 1000)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.Load(); err != nil {
		l.t.Fatal(err)
	}
	for _, rec := range rows {
		if _, err := l.workThread(l.t.Context(), rec, false); err != nil {
			l.t.Fatal(err)
		}
	}
}

// do sends a block that must be accepted.
func (l *lab) do(who, block string) Result {
	l.t.Helper()
	r, err := l.try(who, block)
	if err != nil {
		l.t.Fatalf("%s sends %s: %v", who, block, err)
	}
	return r
}

func (l *lab) try(who, block string) (Result, error) {
	l.t.Helper()
	return l.Do(l.t.Context(), actor(who), mustParse(l.t, block), Options{})
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
	th, err := l.Thread(l.t.Context(), Owner("test"), ref)
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

func answerOf(r Result, kind string) wire.Value {
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

// failingStore is a store whose writes fail while down is set. Its next reads of one namespace or key fail as often as
// failReads says.
type failingStore struct {
	store.Store
	down      atomic.Bool
	unread    string // the namespace or key
	failReads int
}

func (b *failingStore) Records() store.Records { return failingRecords{b.Store.Records(), b} }

type failingRecords struct {
	store.Records
	b *failingStore
}

func (r failingRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if r.b.down.Load() {
		return errors.New("the disk is full")
	}
	return r.Records.Apply(ctx, changes, now)
}

func (r failingRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if r.b.failReads > 0 && (ns == r.b.unread || key == r.b.unread) {
		r.b.failReads--
		return store.Record{}, errors.New("the disk cannot be read")
	}
	return r.Records.Get(ctx, ns, key, now)
}

// readHook calls hook once, after the next read of a namespace.
type readHook struct {
	store.Records
	ns   string
	hook func()
}

func (r *readHook) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	rec, err := r.Records.Get(ctx, ns, key, now)
	if hook := r.hook; hook != nil && ns == r.ns {
		r.hook = nil
		hook()
	}
	return rec, err
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

func (l *lab) put(ref, name, data string) string {
	l.t.Helper()
	entry, err := l.Upload(l.t.Context(), Owner("test"), ref, name, []byte(data))
	if err != nil {
		l.t.Fatal(err)
	}
	return entry.At(0).GetStr("file")
}
