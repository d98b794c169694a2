package mess

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestControlMessagesAreBounded: the number and the age of one peer's control messages are bounded, and they take no
// place of another peer.
func TestControlMessagesAreBounded(t *testing.T) {
	l := newLab(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store)})
	if err != nil {
		t.Fatal(err)
	}
	say := func(peer, id string) error {
		return l.store.Records().Apply(t.Context(), b.Observe(bridge.Inbound{
			Peer: wire.AgentID(peer), MessageID: wire.MessageID(id), ConvID: "conv_1", Intent: Intent, Payload: wire.Obj(),
		}), time.Now())
	}
	for i := range maxControls {
		if err := say("am_loud", fmt.Sprint("msg_", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := say("am_loud", "msg_more"); !errors.Is(err, store.ErrQuota) {
		t.Errorf("one more: %v", err)
	}
	if err := say("am_loud", "msg_0"); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := say("am_quiet", "msg_0"); err != nil {
		t.Errorf("another peer: %v", err)
	}
	page, err := l.store.Records().List(t.Context(), nsControl, "", "", 1, time.Now().Add(controlLifetime+time.Second))
	if err != nil || len(page.Records) != 0 {
		t.Errorf("%d are kept for ever, %v", len(page.Records), err)
	}
}

// TestControlMessagesWaitLonger: waiting control messages are tried with growing pauses, and are applied when that is
// possible.
func TestControlMessagesWaitLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		buckets := rate.NewBuckets(rate.PerHour(10_000), 1, 100)
		l.LimitThreads(buckets, 10_000)
		b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store)})
		if err != nil {
			t.Fatal(err)
		}
		l.executor("carol")
		const said = 30
		claim := func(peer string) string {
			ref := l.request("agent"+peer+fmt.Sprint(time.Now().UnixNano()), "{intent: look}")
			err := l.OfferTo(t.Context(), ref, peer, "", nil, func(_ string, _ wire.Value, changes []store.Change) error {
				return l.store.Records().Apply(t.Context(), changes, time.Now())
			})
			if err != nil {
				t.Fatal(err)
			}
			l.status(peer, ref, "claimed")
			return ref
		}
		for i := range said {
			time.Sleep(time.Millisecond)
			body := "- status: {re: " + claim("am_loud") + ", code: delegated, delegated_to: carol}"
			if err := l.store.Records().Apply(t.Context(), b.Observe(bridge.Inbound{
				Peer: "am_loud", MessageID: wire.MessageID(fmt.Sprint("msg_", i)), ConvID: "conv_1", Intent: Intent,
				Payload: wire.Obj(wire.Field("mess", mustParse(t, body).Tree())),
			}), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		due := func(in time.Duration) (n int) {
			for _, key := range l.keys(nsControl) {
				rec, err := l.store.Records().Get(t.Context(), nsControl, key, time.Now())
				if err != nil || rec.Party != "am_loud" || len(rec.Terms) != 1 || rec.Expires.IsZero() {
					t.Fatalf("%s: %+v, %v", key, rec, err)
				}
				if !time.Now().Add(in).Before(rec.Due) {
					n++
				}
			}
			return n
		}
		if buckets.Take("am_loud", time.Now()); due(0) != said { // it may open no thread now
			t.Fatalf("%d are due", due(0))
		}
		for range 5 { // each attempt leaves them as they are
			l.workDue()
			if n := due(0); n != said {
				t.Errorf("%d wait, want %d", n, said)
			}
			time.Sleep(time.Minute)
			buckets.Take("am_loud", time.Now())
		}
		l.LimitThreads(nil, 0)
		l.workDue()
		if n := len(l.keys(nsControl)); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}
