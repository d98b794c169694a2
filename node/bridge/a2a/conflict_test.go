package a2a_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// meddler is a store that disturbs the bridge. It calls next once, after a request has read a record in ns. It fails
// searches in ns with err while err is set, and the next change with lost.
type meddler struct {
	store.Store
	ns   string
	next atomic.Pointer[func(store.Record)]
	err  atomic.Pointer[error]
	lost atomic.Pointer[error]
}

func (m *meddler) Records() store.Records { return meddledRecords{m.Store.Records(), m} }

type meddledRecords struct {
	store.Records
	m *meddler
}

func (r meddledRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	rec, err := r.Records.Get(ctx, ns, key, now)
	if err == nil && ns == r.m.ns && ctx.Value(http.ServerContextKey) != nil {
		if next := r.m.next.Swap(nil); next != nil {
			(*next)(rec)
		}
	}
	return rec, err
}

func (r meddledRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if err := r.m.lost.Swap(nil); err != nil {
		return *err
	}
	return r.Records.Apply(ctx, changes, now)
}

func (r meddledRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if ns == r.m.ns {
		if err := r.m.err.Load(); err != nil {
			return store.RecordPage{}, *err
		}
	}
	return r.Records.List(ctx, ns, term, after, limit, now)
}

// touch returns a function that stores a record again, like another process that changes it.
func (m *meddler) touch(t *testing.T) *func(store.Record) {
	f := func(rec store.Record) {
		if err := m.Store.Records().Apply(t.Context(), []store.Change{{IfRev: store.Any, Record: rec}}, time.Now()); err != nil {
			t.Error(err)
		}
	}
	return &f
}

func meddle(m *meddler, ns string, more func(*a2a.Config)) func(*a2a.Config) {
	return func(c *a2a.Config) {
		m.Store, m.ns = c.Store, ns
		if c.Store = m; more != nil {
			more(c)
		}
	}
}

// TestDeletePushDuringDelivery checks that a deleted push notification configuration is gone, even if a delivery
// changes it at the same time.
func TestDeletePushDuringDelivery(t *testing.T) {
	var m meddler
	h := serve(t, nil, nil, meddle(&m, "a2a/push", nil))
	hook := newWebhook(t)
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later+`,"taskPushNotificationConfig":{"id":"c1","url":"`+hook.URL+`"}`)), "result.task.id")
	m.next.Store(m.touch(t))
	config := `{"taskId":"` + id + `","id":"c1"}`
	for range 2 { // deleting is idempotent
		if v := h.rpc("ann", "DeleteTaskPushNotificationConfig", config); at(v, "result").Kind() != wire.Object {
			t.Errorf("delete: %s", v.JSON())
		}
		m.next.Store(nil)
		if v := h.rpc("ann", "GetTaskPushNotificationConfig", config); text(v, "error.data.0.reason") != "TASK_NOT_FOUND" {
			t.Errorf("a deleted configuration: %s", v.JSON())
		}
	}
}

// TestUnpinDuringFetch checks that the owner can unpin an agent whose card is stored again at the same time.
func TestUnpinDuringFetch(t *testing.T) {
	p := newPeerAgent(t)
	var m meddler
	h := serve(t, nil, nil, meddle(&m, "a2a/peers", func(c *a2a.Config) {
		c.Links = []bridge.Link{{Name: "far", Kind: "a2a", URL: p.URL}}
	}))
	h.awaitLinkTest(t)
	if err := h.bridge.Test(t.Context(), "far"); err != nil {
		t.Fatal(err)
	}
	m.next.Store(m.touch(t))
	unpin(t, h, "a2a:far/agent")
	plain := p.card
	p.setCard(func(url string) string { return strings.Replace(plain(url), "/rpc", "/other", 1) })
	if err := h.bridge.Test(t.Context(), "far"); err != nil {
		t.Errorf("another card after unpin: %v", err)
	}
}

// TestMessagesAtOnce checks that a task takes two messages that arrive at the same time.
func TestMessagesAtOnce(t *testing.T) {
	var m meddler
	h := serve(t, nil, nil, meddle(&m, "a2a/tasks", nil))
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later)), "result.task.id")
	follow := `,"taskId":"` + id + `"`
	second := func(store.Record) {
		if v := h.rpc("ann", "SendMessage", message("m2", follow, "more", later)); text(v, "result.task.id") != id {
			t.Errorf("the message that came in between: %s", v.JSON())
		}
	}
	m.next.Store(&second)
	if v := h.rpc("ann", "SendMessage", message("m3", follow, "and more", later)); text(v, "result.task.id") != id {
		t.Errorf("the message that came at the same time: %s", v.JSON())
	}
}

// TestAnswerWithoutStore checks that a message waits while the store is unavailable, because it may be the answer to a
// task.
func TestAnswerWithoutStore(t *testing.T) {
	p := newPeerAgent(t)
	var m meddler
	h := serve(t, nil, nil, meddle(&m, "a2a/tasks", func(c *a2a.Config) {
		c.Links = []bridge.Link{{Name: "far", Kind: "a2a", URL: p.URL}}
	}))
	d, failure := delivery(t, "a2a:far/agent"), store.ErrUnavailable
	m.err.Store(&failure)
	_, err := h.bridge.Deliver(t.Context(), d)
	if again, ok := errors.AsType[*client.SendError](err); !ok || !again.Retry || p.count("SendMessage") > 0 {
		t.Errorf("Deliver() = %v, and the agent got %d messages; want another attempt later", err, p.count("SendMessage"))
	}
	m.err.Store(nil)
	if _, err := h.bridge.Deliver(t.Context(), d); err != nil || p.count("SendMessage") != 1 {
		t.Errorf("the next attempt: %v, and the agent got %d messages", err, p.count("SendMessage"))
	}
}
