package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/wire"
)

// A text for an intent that needs an object is refused with an example of that very intent.
func TestExamplePayload(t *testing.T) {
	for _, intent := range []wire.Intent{wire.RequestInfo, wire.Schedule, wire.Negotiate, wire.Handoff} {
		for _, answers := range []bool{false, true} {
			c := content{Intent: string(intent), answers: answers}
			_, err := c.payload(&app{}, "tea at four")
			failed, ok := errors.AsType[*exit.Error](err)
			if !ok {
				t.Fatalf("%s: a text gives %v, want a failure with an example", intent, err)
			}
			example := strings.TrimSuffix(strings.TrimPrefix(failed.Hint, "for example '"), "'")
			payload, err := wire.ParseObject([]byte(example))
			if err != nil {
				t.Fatalf("%s: example %q: %v", intent, example, err)
			}
			// An answer to a question has an action of its own choice (AM-69).
			known, err := wire.CheckPayload(intent, payload)
			if err != nil || !known && !(intent == wire.RequestInfo && answers) {
				t.Errorf("%s: example %s: known %v, %v, want a payload of the intent", intent, example, known, err)
			}
		}
	}
}
