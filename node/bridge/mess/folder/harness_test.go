package folder

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

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
	return &lab{t: t, store: s, Exchange: exchange.New(exchange.Config{Store: s, ThreadsPerHour: -1, CallsPerMinute: -1, RegistrationsPerHour: -1})}
}

func actor(id string) exchange.Actor {
	if id == thread.OwnerID {
		return exchange.Owner("test")
	}
	return exchange.Actor{ID: id, Channel: "test"}
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

// failingStore is a store whose writes fail while down is set.
type failingStore struct {
	store.Store
	down atomic.Bool
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

func (l *lab) put(ref, name, data string) string {
	l.t.Helper()
	entry, err := l.Upload(l.t.Context(), exchange.Owner("test"), ref, name, []byte(data))
	if err != nil {
		l.t.Fatal(err)
	}
	return entry.At(0).GetStr("file")
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
