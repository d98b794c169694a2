package thread_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// ExampleParse reads a MESS block in its YAML form, and writes it as JSON.
func ExampleParse() {
	b, err := thread.Parse([]byte("MESS:\n- v: 1.0.0\n- request:\n    intent: check the door\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", b.JSON())
	_, err = thread.Parse([]byte("MESS:\n- request: {intent: a, intent: b}\n"))
	fmt.Println(err)
	// Output:
	// {"MESS":[{"v":"1.0.0"},{"request":{"intent":"check the door"}}]}
	// INVALID_MESSAGE: duplicate key at line 2
}
