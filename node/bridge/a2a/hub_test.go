package a2a

import (
	"fmt"
	"testing"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
)

// TestAnonymousPlaces checks that the callers at one address cannot take the places of all callers without a token, and
// that these together leave places for callers with one (AM-42).
func TestAnonymousPlaces(t *testing.T) {
	var h door.Hub
	b, total := &Bridge{out: &outbound{}}, 0
	enter := func(name, source string, n int) (entered int) {
		from := caller{name: name, address: b.out.addressOf(name), sources: []rate.Source{{Key: source, Width: 1}}}
		for range n {
			if h.Enter(from.shares()) != nil {
				entered++
				total++
			}
		}
		return entered
	}
	for i := range 4 {
		if n := enter(anonymous, fmt.Sprint("attacker-", i), 20); n != maxWaitersOfOne {
			t.Errorf("address %d has %d places", i, n)
		}
	}
	if n := enter(anonymous, "newcomer", 2); n != 1 {
		t.Errorf("an address without a place gets %d after half of the places are taken", n)
	}
	for i := range 200 {
		enter(anonymous, fmt.Sprint("many-", i), 1)
	}
	if total != maxAnonymous {
		t.Errorf("callers without a token have %d places", total)
	}
	if n := enter("ann", "attacker-0", 20); n != maxWaitersOfOne {
		t.Errorf("a caller with a token gets %d places", n)
	}
}
