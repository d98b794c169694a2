package folder

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// slow is a store that waits before it lists messages, so that writing the files of a thread takes time, as on a disk.
type slow struct {
	store.Store
	delay time.Duration
}

func (s *slow) Records() store.Records { return slowRecords{s.Store.Records(), s} }

type slowRecords struct {
	store.Records
	s *slow
}

func (r slowRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if ns == exchange.NSMessages {
		time.Sleep(r.s.delay)
	}
	return r.Records.List(ctx, ns, term, after, limit, now)
}

// TestMirrorLooksWhileItWrites: additions of others are seen soon, even while a new directory is written or a full one
// is read, and afterwards.
func TestMirrorLooksWhileItWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const threads, each = 60, time.Second
		s := newFolderLabOn(t, func(s store.Store) store.Store { return &slow{s, each} })
		s.executor("bob")
		var refs []string
		for range threads {
			refs = append(refs, s.request("agent", "{intent: look, priority: normal}"))
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.m.Run(ctx) }()
		claim := func(ref string) {
			t.Helper()
			if !exists(s.file(thread.Received, ref)) {
				t.Fatalf("%s is not written", ref)
			}
			s.add(s.file(thread.Received, ref), "from: bob\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- status: {re: "+ref+", code: claimed}\n")
			time.Sleep(3 * PollEvery)
			s.want(ref, thread.Claimed)
		}
		time.Sleep(4 * each)
		claim(refs[0])
		if exists(s.file(thread.Received, refs[threads-1])) {
			t.Error("all was written before the claim: the test proves nothing")
		}
		time.Sleep(2 * threads * each)
		claim(refs[threads-1])
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if log := s.log.String(); !strings.Contains(log, "writing thread files") || !strings.Contains(log, "left=") {
			t.Errorf("the log does not say how far it is:\n%s", log)
		}
	})
}

// TestMirrorSaysHowFarItRead: reading a full directory at the start logs its progress.
func TestMirrorSaysHowFarItRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slower := &slow{}
		s := newFolderLabOn(t, func(s store.Store) store.Store { slower.Store = s; return slower })
		for range 30 {
			s.request("agent", "{intent: look, priority: normal}")
		}
		s.sync()
		again := NewMirror(s.Exchange, s.m.dir, s.m.log) // as after a restart
		slower.delay = time.Second
		root, err := os.OpenRoot(s.m.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if err := again.catchUp(t.Context(), root); err != nil {
			t.Fatal(err)
		}
		if log := s.log.String(); strings.Count(log, "reading thread files") != 2 || !strings.Contains(log, "of=30") {
			t.Errorf("the log does not say how far it is:\n%s", log)
		}
	})
}

// TestNextPoll: polls that take long become less frequent, down to one in maxPollInterval.
func TestNextPoll(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: PollEvery, 50 * time.Millisecond: PollEvery, 200 * time.Millisecond: 10 * time.Second, time.Minute: maxPollInterval,
	} {
		if got := NextPoll(took); got != want {
			t.Errorf("NextPoll(%v) = %v, want %v", took, got, want)
		}
	}
}
