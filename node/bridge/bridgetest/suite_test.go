package bridgetest_test

import (
	"bytes"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestToy runs the suite, and with it everything that bridges share, with a toy bridge on a real node.
func TestToy(t *testing.T) {
	bridgetest.Suite{
		Address:   toyAddress,
		Principal: func(string) string { return "toy:home" },
		Peers:     [2]string{"cat", "dog/2"},
		LinkKind:  bridge.Kind{Name: "toy"},
		New:       func(_ *testing.T, mesh bridge.Mesh, _ *meshtest.Member) bridgetest.Bridge { return newToy(mesh) },
		Message:   toyMessage,
		Kinds: []bridgetest.Kind{
			{
				Name: "message", Intent: wire.Deliver,
				Payload: `{"action":"deliver","message":{"body":"a\n\"b\" ü","subject":"s","priority":"high"}}`,
				Losses:  []bridge.Loss{{Field: "payload.message.priority", Reason: "the toy network has none"}},
			},
			{
				Name: "question", Intent: wire.RequestInfo,
				Payload: `{"action":"ask","question":"why?","context":"c","metadata":{"x":"y"}}`,
				Losses: []bridge.Loss{
					{Field: "payload.context", Reason: "a question is one text"},
					{Field: "payload.metadata.x", Reason: "there are no extensions"},
				},
			},
		},
		Hostile: [][]byte{
			[]byte(`{"id":"1","thread":"t","type":"say","text":"a","text":"b"}`),
			[]byte(`{"id":"1","thread":"t","type":"note","text":"a"}`),
			[]byte(`{"id":"1","thread":"","type":"say","text":"a"}`),
			append([]byte(`{"id":"1","thread":"t","type":"say","text":"`), append(bytes.Repeat([]byte("a"), maxFrame), `"}`...)...),
		},
	}.Run(t)
}
