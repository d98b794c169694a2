//go:build slow

package gateway

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// TestSilentJoins: a client that opens connections and never joins is limited like one with a wrong token (MEW-Q4).
func TestSilentJoins(t *testing.T) {
	t.Parallel()
	r := start(t, newLabConfig(t))
	began := time.Now() // at this time nothing has recovered, however slow the machine is
	players := make([]*mewtest.Player, maxFailedJoins)
	for i := range players {
		players[i] = r.Open("/ws", "")
	}
	for _, p := range players {
		p.AwaitClose(envelope.CloseUnauthorized)
	}
	req := httptest.NewRequest("GET", "/ws", nil)
	req.RemoteAddr = "127.0.0.1:1"
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(30 * time.Second); r.G.joinPenalties.Admit(addressOf(req), began) == 0; {
		select {
		case <-tick.C:
		case <-patience:
			t.Fatalf("after %d connections without a join another one is admitted", maxFailedJoins)
		}
	}
}
