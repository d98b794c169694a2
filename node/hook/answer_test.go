package hook

import (
	"bytes"
	"testing"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// FuzzHookAnswer: whatever a hook prints, an accepted answer can be signed as AM-15 requires, fits into a message, and
// has the shape of its intent.
func FuzzHookAnswer(f *testing.F) {
	for _, s := range []string{
		`{"payload":{"action":"deliver","message":{"body":"hi"}}}`, `{"payload":{"action":"x","n":1e3,"metadata":{"resend_of":"y"}}}`,
		`{"hold":{"reason":"why"}}`, `{"error":{"code":"OWNER_REJECTED"}}`, "", "{}", "rubbish", `{"payload":{"action":"x","10":1}}`,
		`{"artifacts":[{"id":"a","parts":[{"text":"x"},{"raw":"AA=="},{"url":"https://example.com"},{"data":{"a":[1]}}]}]}`,
		"{\"task\":{\"state\":\"working\"}}\n{\"task\":{\"state\":\"completed\",\"text\":\"x\"}}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		got, err := parseAnswer(said, wire.Deliver)
		if err != nil || got.Payload == nil {
			return
		}
		p := *got.Payload
		if text := p.JSON(); !bytes.Equal(text, signing.Canonical(p, signing.JCS)) || !bytes.Equal(text, signing.Canonical(p, signing.ES)) || len(text) > conversations.MaxPayload {
			t.Errorf("payload %s has no single canonical form", text)
		}
		if _, err := wire.CheckPayload(wire.Deliver, p); err != nil {
			t.Errorf("payload %s: %v", p.JSON(), err)
		}
		if meta, _ := p.Get("metadata"); meta.GetStr("resend_of") != "" || meta.GetStr("in_reply_to") != "" {
			t.Errorf("payload %s sets metadata that only the node may set", p.JSON())
		}
	})
}
