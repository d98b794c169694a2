package link

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// FuzzNative: what a peer sends means a message of the mesh with a shape that the node takes, or none.
func FuzzNative(f *testing.F) {
	f.Add("thought", []byte(`"x"`))
	f.Add("question", []byte(`{"question":"q","context":7}`))
	f.Add("vote", []byte(`{"approve":true}`))
	f.Add("proposal", []byte(`{"terms":{"description":"d"},"agentmesh":{"conv":"conv_x","msg":"msg_y"}}`))
	f.Add("Sync!", []byte(`[1]`))
	f.Fuzz(func(t *testing.T, kind string, payload []byte) {
		p, err := wire.ParseForeign(payload, frame.MaxDepth, frame.MaxValues)
		if err != nil {
			return
		}
		h := heard{id: "1", from: "agent-1", kind: kind, payload: p}
		h.takeOurs(wire.Obj())
		intent, native, ok := h.native()
		if !ok {
			return
		}
		if !intent.Valid() || !intent.Standard() && !intent.Custom() || native.Kind() != wire.Object || native.GetStr("action") == "" ||
			native.GetStr("action") == wire.ActionClose {
			t.Errorf("%q %s means %s %s", kind, p.JSON(), intent, native.JSON())
		}
		if _, err := wire.CheckPayload(intent, native); err != nil {
			t.Errorf("%q %s means %s, which the node refuses: %v", kind, p.JSON(), native.JSON(), err)
		}
		if _, err := foreign(intent, native, ""); err != nil && intent != wire.Negotiate {
			t.Errorf("%s %s has no way back: %v", intent, native.JSON(), err)
		}
	})
}
