package wire_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/wire"
)

// ExampleParseMessage reads a message from a stranger: first the strict reader, then the schema, both on the same tree.
func ExampleParseMessage() {
	body := `{"agentmesh":"0.1.0","message_id":"msg_1","conversation_id":"conv_1","from":"am_chris","to":"am_sarah",
		"timestamp":"2026-02-19T10:30:00Z","intent":"mesh.message","payload":{"action":"deliver","message":{"body":"Hi"}},"signature":"…"}`
	tree, err := wire.ParseObject([]byte(body))
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := wire.ParseMessage(tree)
	if err != nil {
		fmt.Println(err)
		return
	}
	known, err := wire.CheckPayload(m.Intent, m.Payload)
	fmt.Println(m.From, m.Intent, m.Action(), known, err)
	// Output: am_chris mesh.message deliver true <nil>
}
