package mess

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// One peer keeps so much aside and for so long, and takes no place of another.
func TestAsidesAreBounded(t *testing.T) {
	l := newLab(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store})
	if err != nil {
		t.Fatal(err)
	}
	say := func(peer, id string) error {
		return l.records.Apply(t.Context(), b.Aside(bridge.Inbound{
			Peer: wire.AgentID(peer), MessageID: wire.MessageID(id), ConvID: "conv_1", Intent: Intent, Payload: wire.Obj(),
		}), time.Now())
	}
	for i := range maxAsides {
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
	page, err := l.records.List(t.Context(), nsAside, "", "", 1, time.Now().Add(keepAside+time.Second))
	if err != nil || len(page.Records) != 0 {
		t.Errorf("%d are kept for ever, %v", len(page.Records), err)
	}
}
