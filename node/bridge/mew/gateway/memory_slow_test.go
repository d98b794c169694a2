//go:build slow

package gateway

import (
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// TestSilentJoins: a client that opens connections and never joins is limited like one with a wrong token (MEW-Q4).
func TestSilentJoins(t *testing.T) {
	t.Parallel()
	r := start(t, newLabConfig(t))
	players := make([]*mewtest.Player, credential.MaxFailures)
	for i := range players {
		players[i] = r.Open("/ws", "")
	}
	for _, p := range players {
		p.AwaitClose(envelope.CloseUnauthorized)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(30 * time.Second); r.G.conns.Len() > 0; {
		select {
		case <-tick.C:
		case <-patience:
			t.Fatal("the connections have not ended")
		}
	}
	if got, body := r.Call("GET", "/participants", "nobody", ""); got != http.StatusTooManyRequests {
		t.Errorf("after %d connections without a join another one gets %d %s", credential.MaxFailures, got, body)
	}
}
