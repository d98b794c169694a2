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

// ExampleParseObject shows what the strict reader refuses: two readers must never see two different messages.
func ExampleParseObject() {
	for _, text := range []string{`{"to":"am_sarah"}`, `{"to":"am_sarah","to":"am_mallory"}`, `{"amount":9007199254740993}`, `{} {}`} {
		_, err := wire.ParseObject([]byte(text))
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// duplicate key at byte 17
	// number beyond 2^53-1 at byte 10
	// text after the value at byte 3
}

// ExampleParseCard reads the card of an agent, and says which field is wrong.
func ExampleParseCard() {
	card := `{"agentmesh":"0.1.0","agent_id":"am_sarah","name":"Sarah's Assistant","endpoint":"http://sarah.example/agentmesh",
		"capabilities":["scheduling"],"intents":["mesh.schedule"],"public_key":"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"}`
	tree, err := wire.ParseObject([]byte(card))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = wire.ParseCard(tree, wire.CardRules{})
	fmt.Println(err)
	_, err = wire.ParseCard(tree.With("endpoint", wire.Text("https://sarah.example/agentmesh")), wire.CardRules{})
	fmt.Println(err)
	// Output:
	// endpoint must be an https URL
	// <nil>
}
