package link

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// FuzzNative: every frame of a peer maps to a message with a shape that the node accepts, or to none.
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
		h := incoming{id: "1", from: "agent-1", kind: kind, payload: p}
		h.extractMeshMembers(wire.Obj())
		intent, native, ok := h.toMesh()
		if !ok {
			return
		}
		if !intent.Valid() || !intent.IsStandard() && !intent.IsCustom() || native.Kind() != wire.Object || native.GetStr("action") == "" ||
			native.GetStr("action") == wire.ActionClose {
			t.Errorf("%q %s means %s %s", kind, p.JSON(), intent, native.JSON())
		}
		if _, err := wire.CheckPayload(intent, native); err != nil {
			t.Errorf("%q %s means %s, which the node refuses: %v", kind, p.JSON(), native.JSON(), err)
		}
		if _, err := fromMesh(intent, native, ""); err != nil && intent != wire.Negotiate {
			t.Errorf("%s %s does not map back: %v", intent, native.JSON(), err)
		}
	})
}
