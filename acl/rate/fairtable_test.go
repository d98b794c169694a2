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
	type has struct {
		key, addr string
		size      int
		last      bool
	}
	for _, tc := range []struct {
		name     string
		places   []has // oldest first
		newcomer string
		size     int    // "" if no place gives way
		want     string // "": no place
	}{
		{"the newest of the source that has most", []has{{"a", "192.0.2.1", 0, false}, {"b", "192.0.2.1", 0, false}, {"c", "198.51.100.1", 0, false}}, "203.0.113.1", 1, "b"},
		{"nobody has more than the newcomer", []has{{"a", "192.0.2.1", 0, false}, {"b", "198.51.100.1", 0, false}}, "203.0.113.1", 1, ""},
		{"the newcomer's own network has most", []has{{"a", "192.0.2.1", 0, false}, {"b", "192.0.2.2", 0, false}, {"c", "192.0.2.3", 0, false}}, "192.0.2.4", 1, ""},
		{"a network counts like one address with two shares", []has{{"a", "192.0.2.1", 0, false}, {"b", "192.0.2.2", 0, false}, {"c", "192.0.2.3", 0, false}, {"d", "192.0.2.4", 0, false}}, "198.51.100.1", 1, "d"},
		{"the last ones last", []has{{"a", "192.0.2.1", 0, false}, {"b", "192.0.2.1", 0, true}}, "203.0.113.1", 1, "a"},
		{"only last ones", []has{{"a", "192.0.2.1", 0, true}, {"b", "192.0.2.1", 0, true}}, "203.0.113.1", 1, "b"},
		{"by size", []has{{"a", "192.0.2.1", 9, false}, {"b", "198.51.100.1", 0, false}, {"c", "198.51.100.1", 0, false}}, "203.0.113.1", 3, "a"},
		{"too large a newcomer", []has{{"a", "192.0.2.1", 9, false}}, "203.0.113.1", 9, ""},
		{"places without a source share", []has{{"a", "", 0, false}, {"b", "", 0, false}, {"c", "", 0, false}, {"d", "", 0, false}, {"e", "", 0, false}}, "203.0.113.1", 1, "e"},
		{"nobody tells a newcomer without a source from them", []has{{"a", "", 0, false}, {"b", "", 0, false}}, "", 1, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c rate.FairTable[string]
			for _, p := range tc.places {
				c.Add(rate.Entry[string]{Key: p.key, Sources: from(p.addr), Size: p.size, GivesWayLast: p.last})
			}
			if got, ok := c.FindDisplaceable(from(tc.newcomer), tc.size); got != tc.want || ok != (tc.want != "") {
				t.Errorf("FindDisplaceable() = %q, %v, want %q", got, ok, tc.want)
			}
			if _, ok := c.FindHeaviest(); !ok {
				t.Error("FindHeaviest() found no place")
			}
		})
	}
}

func TestFairTableChanges(t *testing.T) {
	var c rate.FairTable[string]
	sources := rate.AddrSources(netip.MustParseAddr("192.0.2.1"))
	if _, ok := c.FindHeaviest(); ok {
		t.Error("an empty table has a place to give")
	}
	for _, key := range []string{"a", "b", "c"} {
		c.Add(rate.Entry[string]{Key: key, Sources: sources})
	}
	c.Postpone("c")
	if got, _ := c.FindDisplaceable(nil, 1); got != "b" {
		t.Errorf("with c postponed, %q gives way, want b", got)
	}
	c.Remove("b")
	if got, _ := c.FindDisplaceable(nil, 1); got != "a" {
		t.Errorf("with b removed, %q gives way, want a", got)
	}
	c.Remove("a")
	c.Remove("unknown")
	if got, _ := c.FindHeaviest(); got != "c" {
		t.Errorf("%q is left, want c", got)
	}
	if got, ok := c.FindDisplaceable(rate.AddrSources(netip.MustParseAddr("198.51.100.1")), 1); ok {
		t.Errorf("a table of one place gives way with %q", got)
	}
}
