package acl_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func openStore(t *testing.T) store.Store {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s
}

// TestStanding checks that a block beats every allow, whether configured or stored (AM-25).
func TestStanding(t *testing.T) {
	rules := acl.NewRules(openStore(t).Records(), acl.Policy{
		Allow: []string{"am_listed", "am_both", "am_turned"}, Block: []string{"am_barred", "am_both", "am_once"},
	})
	for principal, s := range map[string]acl.Standing{
		"am_barred": acl.Allowed, "am_turned": acl.Blocked, "am_listed": acl.Rejected,
		"am_once": acl.Approved, "am_met": acl.Approved, "am_refused": acl.Rejected, "mew:home/cat": acl.Allowed,
	} {
		if err := rules.Set(t.Context(), principal, s, start); err != nil {
			t.Fatal(err)
		}
	}
	for principal, want := range map[string]acl.Standing{
		"am_nobody": acl.Unknown, "am_listed": acl.Allowed, "am_both": acl.Blocked, "am_barred": acl.Blocked,
		"am_turned": acl.Blocked, "am_once": acl.Blocked, "am_met": acl.Approved, "am_refused": acl.Rejected,
		"mew:home/cat": acl.Allowed,
	} {
		if got, err := rules.Standing(t.Context(), principal, start); err != nil || got != want {
			t.Errorf("Standing(%s) = %q, %v, want %q", principal, got, err, want)
		}
	}
}

// TestStandingOfAddress: a block of a link applies to all addresses behind it. A block of an address applies even if the
// principal is the link.
func TestStandingOfAddress(t *testing.T) {
	rules := acl.NewRules(openStore(t).Records(), acl.Policy{Allow: []string{"fax:home", "fax:shut/ann"}, Block: []string{"fax:shut"}})
	for principal, s := range map[string]acl.Standing{"mew:lab": acl.Approved, "mew:lab/bob": acl.Blocked, "fax:home/bob": acl.Blocked} {
		if err := rules.Set(t.Context(), principal, s, start); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		principal, address string
		want               acl.Standing
	}{
		{"mew:lab", "mew:lab/ann", acl.Approved}, {"mew:lab", "mew:lab/bob", acl.Blocked}, {"mew:lab", "", acl.Approved},
		{"fax:home", "fax:home/bob", acl.Blocked}, {"fax:home", "fax:home/ann", acl.Allowed}, {"fax:home/ann", "fax:home/ann", acl.Unknown},
		{"fax:shut/ann", "", acl.Blocked}, {"fax:shut", "fax:shut/ann", acl.Blocked}, {"am_a", "", acl.Unknown},
	} {
		if got, err := rules.Standing(t.Context(), tt.principal, start, tt.address); err != nil || got != tt.want {
			t.Errorf("Standing(%s, %s) = %q, %v, want %q", tt.principal, tt.address, got, err, tt.want)
		}
	}
}

func TestRulesForget(t *testing.T) {
	records := openStore(t).Records()
	rules := acl.NewRules(records, acl.Policy{Allow: []string{"am_a"}})
	for _, principal := range []string{"am_a", "am_b", "am_never"} {
		if principal != "am_never" {
			if err := rules.Set(t.Context(), principal, acl.Blocked, start); err != nil {
				t.Fatal(err)
			}
		}
		if err := records.Apply(t.Context(), []store.Change{rules.Change(principal, acl.Unknown, start)}, start); err != nil {
			t.Errorf("forget %s: %v", principal, err)
		}
	}
	for principal, want := range map[string]acl.Standing{"am_a": acl.Allowed, "am_b": acl.Unknown} {
		if got, err := rules.Standing(t.Context(), principal, start); err != nil || got != want {
			t.Errorf("Standing(%s) after the rule is forgotten = %q, %v, want %q", principal, got, err, want)
		}
	}
	if err := rules.Set(t.Context(), "am_b", "friendly", start); err == nil {
		t.Error("Set took a standing that does not exist")
	}
	if err := rules.Set(t.Context(), "am_b", acl.Unknown, start); err == nil {
		t.Error("Set took the standing of a stranger")
	}
}

func TestAllRules(t *testing.T) {
	rules := acl.NewRules(openStore(t).Records(), acl.Policy{Allow: []string{"am_config"}})
	want := []acl.Rule{{Principal: "am_1", Standing: acl.Blocked, Since: start}, {Principal: "am_2", Standing: acl.Approved, Since: start.Add(time.Hour)}}
	for _, r := range want {
		if err := rules.Set(t.Context(), r.Principal, r.Standing, r.Since); err != nil {
			t.Fatal(err)
		}
	}
	var got []acl.Rule
	for r, err := range rules.All(t.Context(), "", start) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored rules (-want +got):\n%s", diff)
	}
}
