package conversations_test

import (
	"fmt"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ExampleJudgeAccept asks what an accept means for a proposal: it agrees, or it is a proposal of its own.
func ExampleJudgeAccept() {
	p := conversations.Proposal{Intent: wire.Schedule, Terms: conversations.Terms{
		Title: "Coffee", Times: []string{"2036-02-21T10:00:00Z", "2036-02-21T14:00:00Z"}, Duration: "30m",
	}}
	for _, text := range []string{
		`{"action":"accept","selected_time":"2036-02-21T14:00:00Z"}`, `{"action":"accept","selected_time":"2036-02-21T16:00:00Z"}`, `{"action":"accept"}`,
	} {
		accept, err := wire.ParseObject([]byte(text))
		if err != nil {
			fmt.Println(err)
			return
		}
		verdict, terms := conversations.JudgeAccept(p, accept)
		fmt.Println(verdict, terms.Times)
	}
	// Output:
	// agreed [2036-02-21T14:00:00Z]
	// counter [2036-02-21T16:00:00Z]
	// ambiguous []
}
