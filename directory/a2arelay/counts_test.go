package a2arelay

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// hookedRecords calls before once, ahead of the next Apply, and returns its error instead of storing if there is one.
type hookedRecords struct {
	store.Records
	before func() error
}

func (r *hookedRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if before := r.before; before != nil {
		r.before = nil
		if err := before(); err != nil {
			return err
		}
	}
	return r.Records.Apply(ctx, changes, now)
}

func newCountedService(t *testing.T) (*Service, *hookedRecords) {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	recs := &hookedRecords{Records: db.Records()}
	return New(Config{
		BaseURL: "https://directory.example/v1", Records: recs,
		Secret: func(context.Context) ([]byte, error) { return []byte("secret"), nil },
		Queue: func(ctx context.Context, _ mailbox.Mail, _ []byte, changes []store.Change) (string, error) {
			return "", recs.Apply(ctx, changes, time.Now())
		},
	}), recs
}

// message sends a message and returns its task.
func (s *Service) message(t *testing.T, id, more, text string) (*taskRow, error) {
	t.Helper()
	params, err := wire.Parse([]byte(`{"message":{"messageId":"` + id + `","role":"ROLE_USER","parts":[{"text":"` + text + `"}]` + more + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	from := caller{token: "t", source: "a2a:x"}
	m, e := message.ReadMessage(params)
	if e != nil {
		t.Fatal(e)
	}
	return s.send(t.Context(), "am_alice", m, from)
}

// checkCounts checks that the counts equal those of a service that reads them from the store.
func checkCounts(t *testing.T, s *Service, tasks int) {
	t.Helper()
	fresh := New(s.cfg)
	if err := fresh.loadCounts(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	got, _ := s.counts.Total(time.Now())
	want, _ := fresh.counts.Total(time.Now())
	if got != want || want.N != tasks {
		t.Errorf("the counts have %+v, the store has %+v, want %d tasks", got, want, tasks)
	}
}

// TestCountsAfterConflict checks that a message which arrives twice at the same time is counted once.
func TestCountsAfterConflict(t *testing.T) {
	s, recs := newCountedService(t)
	recs.before = func() error {
		_, err := s.message(t, "m1", "", "hi")
		return err
	}
	if _, err := s.message(t, "m1", "", "hi"); err != nil {
		t.Fatal(err)
	}
	checkCounts(t, s, 1)
}

// TestCountsAfterFailure checks that a message which could not be stored changes no counts.
func TestCountsAfterFailure(t *testing.T) {
	s, recs := newCountedService(t)
	task, err := s.message(t, "m1", "", "hi")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.update(t.Context(), task.ID, func(t *taskRow) bool { t.Remote = "remote-1"; return true }); err != nil {
		t.Fatal(err)
	}
	fail := func() error { return store.ErrUnavailable }
	recs.before = fail
	if _, err := s.message(t, "m2", `,"taskId":"`+task.ID+`"`, "more"); err == nil {
		t.Error("a message to the task was stored")
	}
	recs.before = fail
	if _, err := s.message(t, "m3", "", "hi"); err == nil {
		t.Error("a new message was stored")
	}
	recs.before = fail
	large := func(t *taskRow) bool { t.Reason = strings.Repeat("x", 1000); return true }
	if _, err := s.update(t.Context(), task.ID, large); err == nil {
		t.Error("a report was stored")
	}
	checkCounts(t, s, 1)
}
