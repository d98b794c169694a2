package daemon

import (
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/store"
)

// TestRelayRegistrationsPerHour: in the local profile, the relay does not limit registrations, like the directory.
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
		p := &Process{bridgeStore: store.Observe(meshtest.Store(t)), cfg: config.Default()}
		p.cfg.PublicURL, p.cfg.AgentRelay.RegistrationsPerHour = tt.public, tt.perHour
		if n := p.relayConfig().RegistrationsPerHour; n < 0 != tt.unlimited || n == 0 {
			t.Errorf("%s: %d registrations an hour, unlimited: %v", tt.name, n, tt.unlimited)
		}
	}
}
