package exchange

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestTakenKeyStaysAway: a key that the owner removes stays removed, even if its executor claims a thread or changes
// its registration at that moment.
func TestTakenKeyStaysAway(t *testing.T) {
	l := newLab(t)
	rename, err := registry.ReadRegistration(wire.Obj(wire.TextField("display_name", "Eve")), true)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		id := "eve" + strconv.Itoa(round)
		if _, _, err := l.Executors.Register(t.Context(), registry.Registration{ID: id}, ""); err != nil {
			t.Fatal(err)
		}
		key, err := l.Executors.GiveKey(t.Context(), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		refs := make([]string, store.MaxConflicts/2-1) // so that no change fails because of the others
		for i := range refs {
			refs[i] = l.request("agent", "{intent: look}")
		}
		var busy sync.WaitGroup
		busy.Go(func() {
			for _, ref := range refs {
				_, _ = l.try(id, "- status: {re: "+ref+", code: claimed}\n- config: {executor: {id: "+id+", capabilities: [more]}}\n")
			}
		})
		busy.Go(func() {
			for range refs {
				_ = l.Executors.Change(t.Context(), id, false, id, rename)
			}
		})
		busy.Go(func() {
			if err := l.Executors.TakeKey(t.Context(), id, nil); err != nil {
				t.Error(err)
			}
		})
		busy.Wait()
		if _, err := l.Executors.Authenticate("Bearer "+key, l.id); err == nil {
			t.Fatalf("round %d: the key works", round)
		}
		if e := l.Executors.Get(id); !e.Pending || e.Key != (credential.Hash{}) {
			t.Fatalf("round %d: in memory %+v", round, e)
		}
		if e := labOn(t, l.store).Executors.Get(id); e == nil || !e.Pending || e.Key != (credential.Hash{}) {
			t.Fatalf("round %d: stored %+v", round, e)
		}
	}
}

// TestOwnerConfigKeepsSeen: the owner's entry about an executor does not change when the executor was last seen.
func TestOwnerConfigKeepsSeen(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.do("bob", "- config: {executor: {id: bob, capabilities: [spoon]}}")
	before := labOn(t, l.store).Executors.Get("bob")
	if before == nil || before.Seen.IsZero() {
		t.Fatal("never seen")
	}
	l.executor("bob", "fork")
	if after := labOn(t, l.store).Executors.Get("bob"); after == nil || !after.Seen.Equal(before.Seen) {
		t.Errorf("seen at %v and then %+v", before.Seen, after)
	}
}

// TestMergeOfOneThread: a merge that names one thread twice cannot be carried out, and is refused when it is made.
func TestMergeOfOneThread(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	a := l.request("agent", "{id: a, intent: a}")
	l.refuse(http.StatusBadRequest, "bob", "- suggestion: {id: both, type: merge, re: ["+a+", "+a+"], proposed: {}}")
}

// TestOrderOfExecutors: executors are listed in the order of their registrations, also after a change of their
// capabilities and after a restart.
func TestOrderOfExecutors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		for _, id := range []string{"carl", "anna", "bert"} {
			l.executor(id, "lift")
			time.Sleep(time.Second)
		}
		l.executor("carl")
		l.executor("carl", "lift")
		again := labOn(t, l.store)
		if err := again.Load(); err != nil {
			t.Fatal(err)
		}
		for name, x := range map[string]*lab{"before": l, "after": again} {
			list, err := x.Executors.List()
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, e := range list {
				ids = append(ids, e.ID)
			}
			if want := []string{"carl", "anna", "bert"}; !slices.Equal(ids, want) {
				t.Errorf("%s the restart: %v, want %v", name, ids, want)
			}
		}
	})
}
