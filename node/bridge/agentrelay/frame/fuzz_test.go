package frame

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// FuzzFrame: the parser returns for every input, and an accepted frame is stamped as one strict JSON object whose id,
// from and ts are the relay's and whose other members are the client's.
func FuzzFrame(f *testing.F) {
	for _, seed := range []string{
		`{"to":["*"],"payload":"x"}`, `{"to":["relay"],"type":"ping"}`, `null`, `[]`, `{"to":["a","b"],"payload":null,"id":1,"from":"x","ts":"y","x":{}}`,
		`{"to":["*"],"payload":1e999,"type":"t","ref":"r"}`, `{"to":[7]}`, `{"to":["*"],"to":["*"],"payload":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, fault := Parse(data)
		if fault != nil {
			if fault.Code != CodeInvalid && fault.Code != CodeTooLarge || fault.Message == "" {
				t.Errorf("refused with %+v", fault)
			}
			return
		}
		v, err := wire.ParseForeign(fr.Stamp("msg_1", "alice", 7), MaxDepth+1, MaxValues+4)
		if err != nil {
			t.Fatalf("%q is stamped as invalid JSON: %v", data, err)
		}
		ts, _ := v.Get("ts")
		if v.GetStr("id") != "msg_1" || v.GetStr("from") != "alice" || string(ts.JSON()) != "7" {
			t.Errorf("stamped as %s", v.JSON())
		}
		if rest := v.Without("id", "from", "ts"); string(rest.JSON()) != string(fr.Tree.JSON()) {
			t.Errorf("passed on as %s, want %s", rest.JSON(), fr.Tree.JSON())
		}
	})
}
