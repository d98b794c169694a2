package acl_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ExampleMatch shows the patterns of intents in the configuration.
func ExampleMatch() {
	fmt.Println(acl.Match("com.example.*", "com.example.pay"), acl.Match("mesh.schedule", "mesh.message"), acl.Match("*", "mesh.message"))
	// Output: true false true
}

// ExamplePolicy_HoldOutgoing asks which of our messages wait for the owner: those that a rule names.
func ExamplePolicy_HoldOutgoing() {
	p := acl.Policy{Hold: []acl.HoldRule{{Intent: "com.example.*", Hold: acl.Always}}}
	for _, m := range []struct {
		intent wire.Intent
		action string
	}{{wire.Deliver, "deliver"}, {wire.Schedule, "accept"}, {"com.example.pay", "order"}} {
		fmt.Println(m.intent, m.action, p.HoldOutgoing(m.intent, m.action, false))
	}
	// Output:
	// mesh.message deliver false
	// mesh.schedule accept false
	// com.example.pay order true
}
