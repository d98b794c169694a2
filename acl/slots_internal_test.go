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

// TestSlotsAreShared checks that, in whatever order asks arrive, a newcomer from a network without a slot gets one,
// and that two networks do not take the same slot from each other forever.
func TestSlotsAreShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxSlots = 12
		from := func(addr string) []rate.Source {
			if addr == "" {
				return nil
			}
			return rate.AddrSources(netip.MustParseAddr(addr))
		}
		var slots []takenSlot
		asked, displacements := 0, 0
		ask := func(sources []rate.Source, proven bool) bool {
			asked++
			if len(slots) == maxSlots {
				displaced, ok := newFullSlots("sender", slots, time.Time{}).FindDisplaceable(sources)
				if !ok {
					return false
				}
				slots = slices.DeleteFunc(slots, func(p takenSlot) bool { return p.Ask == displaced.Ask })
				displacements++
			}
			slots = append(slots, takenSlot{Ask: fmt.Sprintf("ask_%06d", asked), Sources: sources, Proven: proven})
			return true
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			addr := rapid.SampledFrom([]string{"", "192.0.2.1", "192.0.2.2", "10.1.0.1", "2001:db8::1"}).Draw(t, "address")
			ask(from(addr), rapid.Bool().Draw(t, "proven"))
		}
		if displacements > maxSlots*maxSlots {
			t.Fatalf("%d slots changed owners", displacements)
		}
		// If nobody can displace an ask, each of the four addresses has one slot, and asks without a source have four.
		if !ask(from("203.0.113.1"), false) {
			t.Fatalf("the newcomer gets no slot of %v", slots)
		}
	})
}
