package gateway

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLabConfig returns a space with an admin, who may do everything, and two participants who may chat and propose.
func newLabConfig(t testing.TB) SpaceConfig {
	some := mewtest.Caps(t, "chat", "chat/*", "mcp/proposal", "mcp/withdraw", "reasoning/*", "stream/*", "participant/*")
	return SpaceConfig{ID: "lab", Participants: []Participant{
		{Name: "admin", Tokens: []string{"admin-token"}, Capabilities: mewtest.Caps(t, "*")},
		{Name: "alice", Tokens: []string{"alice-token"}, Capabilities: some},
		{Name: "bob", Tokens: []string{"bob-token"}, Capabilities: some},
	}}
}

func start(t testing.TB, spaces ...SpaceConfig) *mewtest.Rig[*Gateway] {
	t.Helper()
	return startWith(t, t.TempDir(), Config{Spaces: spaces})
}

func startWith(t testing.TB, dir string, cfg Config) *mewtest.Rig[*Gateway] {
	t.Helper()
	return startOn(t, dir, cfg, nil)
}

// startOn serves on l, or on a socket if l is nil.
func startOn(t testing.TB, dir string, cfg Config, l *mewtest.Pipes) *mewtest.Rig[*Gateway] {
	t.Helper()
	return mewtest.NewRig(t, dir, l, func(records store.Records) (*Gateway, error) {
		cfg.Records, cfg.PublicURL = records, "ws://gateway.example"
		return New(t.Context(), cfg)
	})
}
