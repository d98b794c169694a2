package capability_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ExampleFirstAllowing asks whether a participant of a MEW space may send an envelope.
func ExampleFirstAllowing() {
	tree, err := wire.ParseObject([]byte(`{"list":[{"kind":"chat"},{"kind":"mcp/request","payload":{"method":"tools/list"}}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	listed, _ := tree.Get("list")
	list, err := capability.ParseList(listed)
	if err != nil {
		fmt.Println(err)
		return
	}
	var held []*capability.Capability
	for i := range list {
		held = append(held, &list[i])
	}
	for _, method := range []string{"tools/list", "tools/call"} {
		fmt.Println(method, capability.FirstAllowing(held, "mcp/request", nil, wire.Obj(wire.TextField("method", method))) != nil)
	}
	// Output:
	// tools/list true
	// tools/call false
}
