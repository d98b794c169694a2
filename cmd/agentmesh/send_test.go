package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A text for an intent that needs an object is refused with an example of that very intent.
func TestExamplePayload(t *testing.T) {
	for _, intent := range []wire.Intent{wire.RequestInfo, wire.Schedule, wire.Negotiate, wire.Handoff} {
		for _, answers := range []bool{false, true} {
			c := content{Intent: string(intent), answers: answers}
			_, err := c.payload(&app{}, "tea at four")
			failed, ok := errors.AsType[*failure](err)
			if !ok {
				t.Fatalf("%s: a text gives %v, want a failure with an example", intent, err)
			}
			example := strings.TrimSuffix(strings.TrimPrefix(failed.hint, "for example '"), "'")
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

// Registrations at the relay have no limit in the local profile, as those at the directory.
func TestRelayRegistrationsPerHour(t *testing.T) {
	for _, tt := range []struct {
		name, public string
		perHour      int
		unlimited    bool
	}{
		{"local", "", 10, true},
		{"public", "https://relay.example.org", 10, false},
		{"public, switched off", "https://relay.example.org", 0, true},
	} {
		p := &process{store: store.Observe(meshtest.Store(t)), cfg: defaultConfig()}
		p.cfg.PublicURL, p.cfg.AgentRelay.RegistrationsPerHour = tt.public, tt.perHour
		if n := p.relayConfig().RegistrationsPerHour; n < 0 != tt.unlimited || n == 0 {
			t.Errorf("%s: %d registrations an hour, unlimited: %v", tt.name, n, tt.unlimited)
		}
	}
}
