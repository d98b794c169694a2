package a2arelay

import (
	"fmt"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHubOfNetworks: one network does not take all places, whatever its width, and many sources that hold places leave
// the second half to sources that have none.
func TestHubOfNetworks(t *testing.T) { // THREATS row 31, AM-42
	from := func(address, narrow, wide string) caller {
		return caller{source: wire.AgentID(address), networks: []wire.AgentID{wire.AgentID(narrow), wire.AgentID(wide)}}
	}
	const sources = maxWaiters / maxWaitersOfOne
	for name, tt := range map[string]struct {
		source func(i int) caller
		want   int
	}{
		"one /56":  {func(i int) caller { return from(fmt.Sprint("a", i), "/56", "/48") }, 2 * maxWaitersOfOne},
		"one /48":  {func(i int) caller { return from(fmt.Sprint("a", i), fmt.Sprint("n", i), "/48") }, 4 * maxWaitersOfOne},
		"many /48": {func(i int) caller { return from(fmt.Sprint("a", i), fmt.Sprint("n", i), fmt.Sprint("w", i)) }, maxWaiters/2 + sources/2},
	} {
		var h door.Hub
		taken := 0
		for i := range sources {
			for range maxWaitersOfOne {
				if h.Enter(tt.source(i).shares()) != nil {
					taken++
				}
			}
		}
		if taken != tt.want {
			t.Errorf("%s takes %d places, want %d", name, taken, tt.want)
		}
		if h.Enter(from("newcomer", "elsewhere", "far").shares()) == nil {
			t.Errorf("%s keeps another network out", name)
		}
	}
}
