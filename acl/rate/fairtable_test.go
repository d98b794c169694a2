package rate_test

import (
	"net/netip"
	"testing"

	"github.com/agentmesh/agentmesh/acl/rate"
)

func TestFairTable(t *testing.T) {
	from := func(addr string) []rate.Source {
		if addr == "" {
			return nil
		}
		return rate.AddrSources(netip.MustParseAddr(addr))
	}
	type entry struct {
		key, addr    string
		givesWayLast bool
	}
	for _, tc := range []struct {
		name     string
		entries  []entry // oldest first
		newcomer string
		want     string // the displaced entry; "" if none gives way
	}{
		{"the newest of the source that has most", []entry{{"a", "192.0.2.1", false}, {"b", "192.0.2.1", false}, {"c", "198.51.100.1", false}}, "203.0.113.1", "b"},
		{"nobody has more than the newcomer", []entry{{"a", "192.0.2.1", false}, {"b", "198.51.100.1", false}}, "203.0.113.1", ""},
		{"the newcomer's own network has most", []entry{{"a", "192.0.2.1", false}, {"b", "192.0.2.2", false}, {"c", "192.0.2.3", false}}, "192.0.2.4", ""},
		{"a network counts like one address with two shares", []entry{{"a", "192.0.2.1", false}, {"b", "192.0.2.2", false}, {"c", "192.0.2.3", false}, {"d", "192.0.2.4", false}}, "198.51.100.1", "d"},
		{"the last ones last", []entry{{"a", "192.0.2.1", false}, {"b", "192.0.2.1", true}}, "203.0.113.1", "a"},
		{"only last ones", []entry{{"a", "192.0.2.1", true}, {"b", "192.0.2.1", true}}, "203.0.113.1", "b"},
		{"entries without a source share", []entry{{"a", "", false}, {"b", "", false}, {"c", "", false}, {"d", "", false}, {"e", "", false}}, "203.0.113.1", "e"},
		{"a newcomer without a source counts like entries without one", []entry{{"a", "", false}, {"b", "", false}}, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c rate.FairTable[string]
			for _, e := range tc.entries {
				c.Add(rate.Entry[string]{Key: e.key, Sources: from(e.addr), GivesWayLast: e.givesWayLast})
			}
			if got, ok := c.FindDisplaceable(from(tc.newcomer)); got != tc.want || ok != (tc.want != "") {
				t.Errorf("FindDisplaceable() = %q, %v, want %q", got, ok, tc.want)
			}
			if _, ok := c.FindHeaviest(); !ok {
				t.Error("FindHeaviest() found no entry")
			}
		})
	}
}

func TestFairTableChanges(t *testing.T) {
	var c rate.FairTable[string]
	sources := rate.AddrSources(netip.MustParseAddr("192.0.2.1"))
	if _, ok := c.FindHeaviest(); ok {
		t.Error("FindHeaviest() found an entry in an empty table")
	}
	for _, key := range []string{"a", "b", "c"} {
		c.Add(rate.Entry[string]{Key: key, Sources: sources})
	}
	c.Postpone("c")
	if got, _ := c.FindDisplaceable(nil); got != "b" {
		t.Errorf("with c postponed, %q gives way, want b", got)
	}
	c.Remove("b")
	if got, _ := c.FindDisplaceable(nil); got != "a" {
		t.Errorf("with b removed, %q gives way, want a", got)
	}
	c.Remove("a")
	c.Remove("unknown")
	if got, _ := c.FindHeaviest(); got != "c" {
		t.Errorf("%q is left, want c", got)
	}
	if got, ok := c.FindDisplaceable(rate.AddrSources(netip.MustParseAddr("198.51.100.1"))); ok {
		t.Errorf("a table of one place gives way with %q", got)
	}
}
