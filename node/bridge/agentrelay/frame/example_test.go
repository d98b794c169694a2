package frame_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
)

// ExampleParse reads what a client sends to a relay.
func ExampleParse() {
	f, refusal := frame.Parse([]byte(`{"to":["owl"],"type":"chat","payload":"hello"}`))
	fmt.Println(f.To, refusal == nil)
	_, refusal = frame.Parse([]byte(`{"payload":"hello"}`))
	fmt.Println(refusal.Code)
	// Output:
	// [owl] true
	// invalid_message
}
