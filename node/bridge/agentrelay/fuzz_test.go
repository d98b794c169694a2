package agentrelay

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// FuzzFrame: whatever a client sends, the parser ends, and what it takes is stamped as one strict JSON object whose
// id, from and ts are the relay's and whose other members are the client's.
func FuzzFrame(f *testing.F) {
	for _, seed := range []string{
		`{"to":["*"],"payload":"x"}`, `{"to":["relay"],"type":"ping"}`, `null`, `[]`, `{"to":["a","b"],"payload":null,"id":1,"from":"x","ts":"y","x":{}}`,
		`{"to":["*"],"payload":1e999,"type":"t","ref":"r"}`, `{"to":[7]}`, `{"to":["*"],"to":["*"],"payload":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, fault := parseFrame(data)
		if fault != nil {
			if fault.code != codeInvalid && fault.code != codeTooLarge || fault.message == "" {
				t.Errorf("refused with %+v", fault)
			}
			return
		}
		v, err := wire.ParseForeign(fr.stamp("msg_1", "alice", 7), maxDepth+1, maxValues+4)
		if err != nil {
			t.Fatalf("%q is stamped as no JSON: %v", data, err)
		}
		ts, _ := v.Get("ts")
		if v.GetStr("id") != "msg_1" || v.GetStr("from") != "alice" || string(ts.JSON()) != "7" {
			t.Errorf("stamped as %s", v.JSON())
		}
		if rest := v.Without("id", "from", "ts"); string(rest.JSON()) != string(fr.tree.JSON()) {
			t.Errorf("passed on as %s, want %s", rest.JSON(), fr.tree.JSON())
		}
		if fr.command() {
			fr.readSubscription(true)
			readQuery(fr.payload)
			readWanted(fr.payload, 50)
		}
	})
}

// FuzzNative: what a peer sends means a message of the mesh with a shape that the node takes, or none.
func FuzzNative(f *testing.F) {
	f.Add("thought", []byte(`"x"`))
	f.Add("question", []byte(`{"question":"q","context":7}`))
	f.Add("vote", []byte(`{"approve":true}`))
	f.Add("proposal", []byte(`{"terms":{"description":"d"},"agentmesh":{"conv":"conv_x","msg":"msg_y"}}`))
	f.Add("Sync!", []byte(`[1]`))
	f.Fuzz(func(t *testing.T, kind string, payload []byte) {
		p, err := wire.ParseForeign(payload, maxDepth, maxValues)
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
