package acl_test

import (
	"fmt"
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

func TestRulesForget(t *testing.T) {
	rules := acl.NewRules(openStore(t).Records(), acl.Policy{Allow: []string{"am_a"}})
	for _, principal := range []string{"am_a", "am_b", "am_never"} {
		if principal != "am_never" {
			if err := rules.Set(t.Context(), principal, acl.Blocked, start); err != nil {
				t.Fatal(err)
			}
		}
		if err := rules.Forget(t.Context(), principal, start); err != nil {
			t.Errorf("Forget(%s): %v", principal, err)
		}
	}
	for principal, want := range map[string]acl.Standing{"am_a": acl.Allowed, "am_b": acl.Unknown} {
		if got, err := rules.Standing(t.Context(), principal, start); err != nil || got != want {
			t.Errorf("Standing(%s) after Forget = %q, %v, want %q", principal, got, err, want)
		}
	}
	if err := rules.Set(t.Context(), "am_b", "friendly", start); err == nil {
		t.Error("Set took a standing that does not exist")
	}
	if err := rules.Set(t.Context(), "am_b", acl.Unknown, start); err == nil {
		t.Error("Set took the standing of a stranger")
	}
}

func TestRulesList(t *testing.T) {
	rules := acl.NewRules(openStore(t).Records(), acl.Policy{Allow: []string{"am_config"}})
	var want []acl.Rule
	for i := range 5 {
		r := acl.Rule{Principal: fmt.Sprintf("am_%d", i), Standing: acl.Blocked, Since: start.Add(time.Duration(i) * time.Hour)}
		if err := rules.Set(t.Context(), r.Principal, r.Standing, r.Since); err != nil {
			t.Fatal(err)
		}
		want = append(want, r)
	}
	if err := rules.Set(t.Context(), "am_9", acl.Approved, start); err != nil {
		t.Fatal(err)
	}
	var got []acl.Rule
	for after := ""; ; {
		page, next, err := rules.List(t.Context(), acl.Blocked, after, 2, start)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, page...)
		if after = next; after == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocked rules (-want +got):\n%s", diff)
	}
	all, _, err := rules.List(t.Context(), acl.Unknown, "", 100, start)
	if err != nil || len(all) != 6 {
		t.Errorf("List of all = %d rules, %v, want 6", len(all), err)
	}
}
