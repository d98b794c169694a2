//go:build clockstep

package moltspeak

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStep: a wrong clock forgets no stranger and locks nobody out.
func TestClockStep(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		s := meshtest.Store(t)
		b, err := New(Config{
			Agent: us, Key: keyOf("me@home"), Box: boxOf("me@home"), Serve: true, Mesh: bridgetest.NewMesh(&fakeNode{s: s}, s), Store: s,
		})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{t: t, b: b, store: s}
		go b.due.Run(t.Context())
		const stranger, talker = "stranger@x", "talker@x"
		ping := func(peer string) message.Code { return r.code(peer, r.draft(peer, message.OpPing, `{"nonce":1}`)) }
		ping(stranger)
		r.shake(talker)
		time.Sleep(forgetEmpty - 30*time.Minute)
		r.shake(talker)

		storetest.StepClock(t, by)
		for range 2 {
			time.Sleep(10 * time.Minute)
		}
		limited := false
		for range 300 {
			limited = ping(talker) == message.CodeRateLimit || limited
		}
		storetest.StepClock(t, 0)
		time.Sleep(time.Minute)
		if _, known, err := b.pins.get(t.Context(), stranger, time.Now()); err != nil || !known {
			t.Errorf("the pin of a stranger of today is there: %t, %v", known, err)
		}
		if code := ping(talker); code != "" || !limited {
			t.Errorf("a minute after a sender was limited (%t): %q", limited, code)
		}
		time.Sleep(forgetEmpty)
		if _, known, err := b.pins.get(t.Context(), stranger, time.Now()); err != nil || known {
			t.Errorf("the pin of a stranger of yesterday is there: %t, %v", known, err)
		}
	})
}
