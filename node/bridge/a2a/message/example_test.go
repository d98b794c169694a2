package message_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ExampleReadMessage makes a message of an A2A client one of AgentMesh.
func ExampleReadMessage() {
	params, err := wire.ParseObject([]byte(`{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"Are you free on Friday?"}]}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	m, refused := message.ReadMessage(params)
	if refused != nil {
		fmt.Println(refused)
		return
	}
	intent, payload := m.Payload()
	fmt.Printf("%s %s\n", intent, payload.JSON())
	// Output: mesh.message {"action":"deliver","message":{"body":"Are you free on Friday?","reply_requested":true}}
}
