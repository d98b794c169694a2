package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

type refusing struct{ calls int }

func (r *refusing) Deliver(context.Context, bridge.Delivery) (bridge.Delivered, error) {
	r.calls++
	return bridge.Delivered{}, errors.New("down")
}

// What leaves over another bridge is scanned: the owner is told of kinds, once for a message, and the message leaves
// all the same (MS-40).
func TestPersonalDataOnOtherBridges(t *testing.T) {
	var told [][]string
	out := &refusing{}
	w := watched{out, func(_ context.Context, _ bridge.Delivery, types []string) { told = append(told, types) }}
	for _, d := range []struct {
		payload string
		attempt int
	}{
		{`{"action":"deliver","message":{"body":"write to jane.doe@example.com"}}`, 1},
		{`{"action":"deliver","message":{"body":"write to jane.doe@example.com"}}`, 2},
		{`{"action":"deliver","message":{"body":"the meeting is at noon"}}`, 1},
		{`{"action":"deliver","message":{"body":"x"},"metadata":{"in_reply_to":"jane.doe@example.com"}}`, 1},
	} {
		payload, err := wire.Parse([]byte(d.payload))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Deliver(t.Context(), bridge.Delivery{Address: "mew:x/y", Message: wire.Message{Payload: payload}, Attempt: d.attempt}); err == nil {
			t.Error("the bridge was not asked")
		}
	}
	if out.calls != 4 || len(told) != 1 || !slices.Equal(told[0], []string{"email"}) {
		t.Errorf("%d deliveries, the owner was told %v", out.calls, told)
	}
}
