package client_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/node/client"
)

// ExampleParseJoinLink reads a link to join a directory. A link that would send its code in the clear is refused.
func ExampleParseJoinLink() {
	link := client.JoinLink("https://mesh.example/v1", "ABCD")
	base, code, err := client.ParseJoinLink(link)
	fmt.Println(link, base, len(code), err)
	_, _, err = client.ParseJoinLink("http://mesh.example/join#ABCD")
	fmt.Println(err != nil)
	// Output:
	// https://mesh.example/join#ABCD https://mesh.example/v1 4 <nil>
	// true
}
