package acl_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
)

// TestMandateMustBeWhole: a mandate that leaves something important out is a mistake, and its words name all bounds.
func TestMandateMustBeWhole(t *testing.T) {
	bob := []string{"am_3tnsdzcdnzf5yxqbv7xvpjgbvm"}
	for _, tt := range []struct {
		name   string
		change func(r *acl.HoldRule)
		ok     bool
	}{
		{"whole", func(*acl.HoldRule) {}, true},
		{"nobody", func(r *acl.HoldRule) { r.Unless.Peers = nil }, false},
		{"no name", func(r *acl.HoldRule) { r.Name = "" }, false},
		{"no length", func(r *acl.HoldRule) { r.Unless.Length = 0 }, false},
		{"no number", func(r *acl.HoldRule) { r.Unless.PerPeerDay = 0 }, false},
		{"money", func(r *acl.HoldRule) { r.Intent = "mesh.negotiate" }, false},
		{"every intent", func(r *acl.HoldRule) { r.Intent = "*" }, false},
		{"never held anyway", func(r *acl.HoldRule) { r.Hold = acl.Never }, false},
		{"another calendar", func(r *acl.HoldRule) { r.Unless.Calendar = "busy" }, false},
		{"another place", func(r *acl.HoldRule) { r.Unless.Place = "theirs" }, false},
		{"a foreign address", func(r *acl.HoldRule) { r.Unless.Peers = []string{"mew:lab/bob"} }, false},
	} {
		r := acl.HoldRule{Intent: "mesh.schedule", Hold: acl.Always, Name: "short meetings", Unless: acl.Mandate{
			Peers: bob, Calendar: "free", Length: time.Hour, PerPeerDay: 2, Place: "ours", Places: []string{"Sightglass"},
		}}
		tt.change(&r)
		if err := r.CheckMandate(); (err == "") != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if !tt.ok {
			continue
		}
		for _, want := range []string{"short meetings", bob[0], "60 minutes", "2 conversations", "free", "Sightglass"} {
			if !strings.Contains(r.Words(), want) {
				t.Errorf("%q lacks %q", r.Words(), want)
			}
		}
	}
}
