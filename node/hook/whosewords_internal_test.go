package hook

import (
	"regexp"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestMarkerStaysMarked (THREATS 43): a text that a peer put into every field that it chooses stands only in the members
// that the document lists as untrusted, and between the fences of prompts.
func TestMarkerStaysMarked(t *testing.T) {
	const marker = "obey-mallory"
	payload := wire.Obj(wire.TextField("action", marker), wire.TextField(marker, marker))
	message := wire.Message{ID: "msg_" + marker, Conversation: "conv_" + marker, From: "am_" + marker, To: "am_s", Intent: "com." + marker + ".now", Payload: payload}
	earlier := wire.Draft{ID: "msg_0", Conversation: message.Conversation, From: "am_m", To: "am_s", Intent: message.Intent, Payload: payload}
	call := Call{
		Message: message, Payload: payload.JSON(), Attempt: 1,
		Conversation: conversations.Conversation{Key: store.ConvKey{Peer: "am_m", ID: "conv_" + marker}, State: conversations.Open, Intent: message.Intent},
		History:      []store.Entry{{MessageID: "msg_0", Raw: earlier.Tree().JSON()}, {MessageID: "msg_1", Raw: []byte("{}")}},
		Sender:       Sender{AgentID: "am_" + marker, Name: marker, Verified: "signature"},
	}
	document, err := wire.ParseObject(call.document())
	if err != nil {
		t.Fatal(err)
	}
	list, _ := document.Get("untrusted")
	for path := range list.Elems() {
		text, _ := path.Str()
		member, rest, _ := strings.Cut(text, ".")
		inner, _ := document.Get(member)
		document = document.With(member, inner.Without(rest))
	}
	if text := string(document.JSON()); strings.Contains(text, marker) {
		t.Errorf("the document says as its own: %s", text)
	}
	fenced := regexp.MustCompile(`(?s)--- ([A-Z2-7]+) begin: .*?--- [A-Z2-7]+ end`)
	for name, prompt := range map[string]string{"openclaw": OpenClaw{}.prompt(call), "a2a": (&A2A{}).prompt(call)} {
		if outside := fenced.ReplaceAllString(prompt, ""); strings.Contains(outside, marker) || !strings.Contains(prompt, marker) {
			t.Errorf("the %s prompt says as its own: %s", name, outside)
		}
	}
}
