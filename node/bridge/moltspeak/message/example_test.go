package message_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// ExampleParse reads a signed MoltSpeak message, and verifies it with the key of its sender.
func ExampleParse() {
	key := signing.NewEd25519FromSeed(make([]byte, 32))
	tree, err := wire.ParseObject([]byte(`{"v":"0.1","id":"6f1b7c1e-0000-4000-8000-000000000001","ts":1760000000000,"op":"query",
		"from":{"agent":"cat","org":"acme"},"to":{"agent":"dog","org":"home"},"p":{"domain":"weather","intent":"forecast"},"cls":"pub"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	m, refused := message.Parse(message.Sign(tree, key))
	if refused != nil {
		fmt.Println(refused)
		return
	}
	fmt.Println(m.Op, m.From.Name(), m.Class, m.Verify(key.Public()) == nil)
	// Output: query cat@acme pub true
}
