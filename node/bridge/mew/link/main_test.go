package link

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a gateway of this project, which the links of a test join.
type rig = mewtest.Rig[*gateway.Gateway]

// start hosts spaces on a socket.
func start(t testing.TB, spaces ...gateway.SpaceConfig) *rig {
	t.Helper()
	return startOn(t, t.TempDir(), gateway.Config{Spaces: spaces}, nil)
}

// startOn serves on l, or on a socket if l is nil.
func startOn(t testing.TB, dir string, cfg gateway.Config, l *mewtest.Pipes) *rig {
	t.Helper()
	return mewtest.NewRig(t, dir, l, func(records store.Records) (*gateway.Gateway, error) {
		cfg.Records, cfg.PublicURL = records, "ws://gateway.example"
		return gateway.New(t.Context(), cfg)
	})
}
