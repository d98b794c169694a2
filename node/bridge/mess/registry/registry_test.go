package registry

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// newRegistry returns a registry on a real database.
func newRegistry(t testing.TB, mode credential.Mode) *Executors {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mess.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return New(Config{
		ID: "home", Registration: mode, CallsPerMinute: -1, RegistrationsPerHour: -1, Records: s.Records(),
		Load: func() error { return nil }, HasThreads: func(string) bool { return false },
	})
}

func statusOf(err error) int {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Status
	}
	return http.StatusOK
}

// TestFullCatalogTakesUpdates: a full catalog refuses new entries, and not new descriptions of its entries.
func TestFullCatalogTakesUpdates(t *testing.T) {
	r := newRegistry(t, credential.Open)
	var list []Capability
	for i := range maxCapabilities {
		list = append(list, Capability{ID: fmt.Sprintf("c%06d", i)})
	}
	r.add(list)
	if err := r.AddCapabilities(t.Context(), []Capability{{ID: "c000007", Description: "new"}}); err != nil {
		t.Errorf("the update is refused: %v", err)
	}
	if err := r.AddCapabilities(t.Context(), []Capability{{ID: "c000007"}, {ID: "d"}}); statusOf(err) != http.StatusConflict {
		t.Errorf("one entry too many: %v", err)
	}
}

// TestUnusedCapabilities: a capability that no executor has any longer takes no memory: executors choose the ids.
func TestUnusedCapabilities(t *testing.T) {
	r := newRegistry(t, credential.Open)
	if _, _, err := r.Register(t.Context(), Registration{ID: "bob"}, ""); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		err := r.edit(t.Context(), "bob", nil, func(e *Executor) error {
			e.Capabilities = []thread.Need{{ID: fmt.Sprintf("a%d", i)}, {ID: fmt.Sprintf("b%d", i)}}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.byCap); n != 2 {
		t.Errorf("there are %d capabilities after 20 changes, want the 2 of the executor", n)
	}
	if err := r.Admit(t.Context(), "bob", false, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(r.byCap); n != 0 {
		t.Errorf("there are %d capabilities without an executor", n)
	}
}

// TestPendingIsNoWrongKey: an executor that waits for the owner may ask as often as it likes. Its key is not wrong.
func TestPendingIsNoWrongKey(t *testing.T) {
	r := newRegistry(t, credential.Approval)
	key, _, err := r.Register(t.Context(), Registration{ID: "bob"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for range credential.MaxFailures + 1 {
		_, err = r.Authenticate("Bearer "+key, "home")
		err = r.CountFailure(netip.MustParseAddr("192.0.2.1"), err)
	}
	if err != errPending {
		t.Errorf("a pending key: %v", err)
	}
	for range credential.MaxFailures + 1 {
		_, err = r.Authenticate("Bearer "+key, "other")
		err = r.CountFailure(netip.MustParseAddr("192.0.2.1"), err)
	}
	if statusOf(err) != http.StatusTooManyRequests {
		t.Errorf("a key of another exchange: %v", err)
	}
}

// TestPreferences: preferences, notification channels and hooks are stored and returned as given, within the size of a
// registration (MESS-45).
func TestPreferences(t *testing.T) {
	r := newRegistry(t, credential.Open)
	register := func(body string) error {
		t.Helper()
		v, err := wire.Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		reg, err := ReadRegistration(v, false)
		if err == nil {
			_, _, err = r.Register(t.Context(), reg, "")
		}
		return err
	}
	preferences := `{"min_priority":"urgent","quiet_hours":{"enabled":true,"start":"22:00"},"auto_claim_patterns":["^water"],"more":[1]}`
	channels := `[{"type":"ntfy","topic":"bob"},{"type":"pushover","user":"x"}]`
	if err := register(`{"executor_id":"bob","hooks":{"a":1},"preferences":` + preferences + `,"notifications":` + channels + `}`); err != nil {
		t.Fatal(err)
	}
	again := New(r.cfg)
	if err := again.Restore(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	e := again.accounts.Get("bob")
	if string(e.Preferences.JSON()) != preferences || string(e.Notifications.JSON()) != channels || string(e.Hooks.JSON()) != `{"a":1}` {
		t.Errorf("stored %s, %s, %s", e.Preferences.JSON(), e.Notifications.JSON(), e.Hooks.JSON())
	}
	if err := register(`{"executor_id":"eve","preferences":"none"}`); statusOf(err) != http.StatusBadRequest {
		t.Errorf("preferences as a text: %v", err)
	}
	if err := register(`{"executor_id":"eve","preferences":{"x":"` + strings.Repeat("y", 32<<10) + `"}}`); statusOf(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("large preferences: %v", err)
	}
}

// BenchmarkHasNoCandidate10000 asks for a thread that no executor can do, which looks at the most executors.
func BenchmarkHasNoCandidate10000(b *testing.B) {
	executors := New(Config{})
	for i := range 10_000 {
		executors.accounts.Publish(&Executor{Account: credential.Account{ID: fmt.Sprintf("e%05d", i)}, Capabilities: []thread.Need{{ID: "home"}, {ID: fmt.Sprintf("cap%d", i%50)}, {ID: fmt.Sprintf("rare%d", i%1000)}}})
	}
	for i := 0; b.Loop(); i++ {
		th := &thread.Thread{Requires: []thread.Need{{ID: "home"}, {ID: fmt.Sprintf("cap%d", i%50)}, {ID: fmt.Sprintf("rare%d", i%1000+1)}}}
		if !executors.HasNoCandidate(th) {
			b.Fatalf("%v: somebody can do it", th.CapabilityIDs())
		}
	}
}
