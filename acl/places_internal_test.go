package acl

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl/rate"
)

// TestPlacesAreShared checks that, in whatever order asks arrive, a newcomer from a network without a slot gets one,
// and that two networks do not take the same slot from each other forever.
func TestPlacesAreShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 12
		from := func(addr string) []rate.Source {
			if addr == "" {
				return nil
			}
			return rate.AddrSources(netip.MustParseAddr(addr))
		}
		var places []place
		asked, moved := 0, 0
		ask := func(sources []rate.Source, proven bool) bool {
			asked++
			if len(places) == most {
				gone, ok := newFullSlots("sender", places, time.Time{}).FindDisplaceable(sources, 1)
				if !ok {
					return false
				}
				places = slices.DeleteFunc(places, func(p place) bool { return p.Ask == gone.Ask })
				moved++
			}
			places = append(places, place{Ask: fmt.Sprintf("ask_%06d", asked), Sources: sources, Proven: proven})
			return true
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			addr := rapid.SampledFrom([]string{"", "192.0.2.1", "192.0.2.2", "10.1.0.1", "2001:db8::1"}).Draw(t, "address")
			ask(from(addr), rapid.Bool().Draw(t, "proven"))
		}
		if moved > most*most {
			t.Fatalf("%d places changed hands", moved)
		}
		// If nobody can displace an ask, each of the four addresses has one slot, and asks without a source have four.
		if !ask(from("203.0.113.1"), false) {
			t.Fatalf("the newcomer gets no place of %v", places)
		}
	})
}
