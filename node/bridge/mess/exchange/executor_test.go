package exchange

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestTakenKeyStaysAway: a key that the owner removes stays removed, even if its executor claims a thread or changes
// its registration at that moment.
func TestTakenKeyStaysAway(t *testing.T) {
	l := newLab(t)
	for round := range 20 {
		id := "eve" + strconv.Itoa(round)
		key, err := l.Executors.Register(t.Context(), Registration{ID: id}, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		refs := make([]string, 8)
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
				_ = l.Executors.Change(t.Context(), actor(id), id, Registration{Name: "Eve", present: []string{"display_name"}})
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
		if c := l.Executors.get(id); !c.Pending || c.KeyHash != "" {
			t.Fatalf("round %d: in memory %+v", round, c.Executor)
		}
		if e, err := l.Executors.read(t.Context(), id); err != nil || !e.Pending || e.KeyHash != "" {
			t.Fatalf("round %d: stored %+v, %v", round, e, err)
		}
	}
}

// TestExecutorsKeepTheNewest: an older version of an executor never replaces a newer one, and a claim changes only the
// claim times.
func TestExecutorsKeepTheNewest(t *testing.T) {
	r := newExecutors(Config{})
	r.put(&Executor{ID: "eve", KeyHash: "abc", Version: 1})
	r.put(&Executor{ID: "eve", Pending: true, Version: 3})
	r.put(&Executor{ID: "eve", KeyHash: "abc", Version: 2})
	if c := r.get("eve"); !c.Pending || c.KeyHash != "" || r.byKey("abc") != nil {
		t.Errorf("eve = %+v", c.Executor)
	}
	r.addClaim(claimTime{"eve", time.Second, time.Now()})
	if c := r.get("eve"); !c.Pending || !slices.Equal(c.Claims, []time.Duration{time.Second}) {
		t.Errorf("after a claim: %+v", c.Executor)
	}
}

// TestClaimTimeIsMeasuredFromTheOffer: a thread that waited before anybody could claim it does not make its executor
// look slow (MESS-42).
func TestClaimTimeIsMeasuredFromTheOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		defer l.store.Close()
		l.executor("bob")
		res, err := l.Do(t.Context(), actor("agent"), mustParse(t, "- request: {intent: a}"), Options{Hold: true})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		l.status(thread.OwnerID, res.Created[0], "received")
		time.Sleep(time.Minute)
		l.status("bob", res.Created[0], "claimed")
		if c := l.Executors.get("bob"); !slices.Equal(c.Claims, []time.Duration{time.Minute}) {
			t.Errorf("it took %v", c.Claims)
		}
	})
}

// TestOwnerConfigKeepsSeen: the owner's entry about an executor does not change when the executor was last seen.
func TestOwnerConfigKeepsSeen(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.do("bob", "- config: {executor: {id: bob, capabilities: [spoon]}}")
	before, err := l.Executors.read(t.Context(), "bob")
	if err != nil || before.Seen.IsZero() {
		t.Fatalf("never seen, %v", err)
	}
	l.executor("bob", "fork")
	if after, err := l.Executors.read(t.Context(), "bob"); err != nil || !after.Seen.Equal(before.Seen) {
		t.Errorf("seen at %v and then %v, %v", before.Seen, after.Seen, err)
	}
}

// TestFullCatalogueTakesUpdates: a full catalogue refuses new entries, and not new descriptions of its entries.
func TestFullCatalogueTakesUpdates(t *testing.T) {
	l := newLab(t)
	var list []Capability
	for i := range maxCapabilities {
		list = append(list, Capability{ID: fmt.Sprintf("c%06d", i)})
	}
	l.Executors.add(list)
	if err := l.Executors.AddCapabilities(t.Context(), []Capability{{ID: "c000007", Description: "new"}}); err != nil {
		t.Errorf("the update is refused: %v", err)
	}
	if err := l.Executors.AddCapabilities(t.Context(), []Capability{{ID: "c000007"}, {ID: "d"}}); statusOf(err) != http.StatusConflict {
		t.Errorf("one entry too many: %v", err)
	}
}

// TestMergeOfOneThread: a merge that names one thread twice cannot be carried out, and is refused when it is made.
func TestMergeOfOneThread(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	a := l.request("agent", "{id: a, intent: a}")
	l.refuse(http.StatusBadRequest, "bob", "- suggestion: {id: both, type: merge, re: ["+a+", "+a+"], proposed: {}}")
}

// TestUnusedCapabilities: a capability that no executor has any longer takes no memory. Executors may choose any ids and
// change them at any time.
func TestUnusedCapabilities(t *testing.T) {
	l := newLab(t)
	for i := range 20 {
		l.executor("bob", fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i))
	}
	if n := len(l.Executors.byCap); n != 2 {
		t.Errorf("there are %d capabilities after 20 changes, want the 2 of the executor", n)
	}
	if err := l.Executors.Admit(t.Context(), "bob", false, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(l.Executors.byCap); n != 0 {
		t.Errorf("there are %d capabilities without an executor", n)
	}
}

// TestPendingIsNoWrongKey: an executor that waits for the owner may ask as often as it likes. Its key is not wrong.
func TestPendingIsNoWrongKey(t *testing.T) {
	l := newLab(t)
	key, err := l.Executors.Register(t.Context(), Registration{ID: "bob"}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range MaxFailures + 1 {
		_, err = l.Executors.Authenticate("Bearer "+key, l.ID())
		err = l.Executors.CountFailure(netip.MustParseAddr("192.0.2.1"), err)
	}
	if err != errPending {
		t.Errorf("a pending key: %v", err)
	}
	for range MaxFailures + 1 {
		_, err = l.Executors.Authenticate("Bearer "+key, "other")
		err = l.Executors.CountFailure(netip.MustParseAddr("192.0.2.1"), err)
	}
	if statusOf(err) != http.StatusTooManyRequests {
		t.Errorf("a key of another exchange: %v", err)
	}
}

// TestOrderOfExecutors: executors get offers in the order of their registrations, also after a change of their
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
			for _, th := range []*thread.Thread{{}, {Requires: []thread.Need{{ID: "lift"}}}} {
				var ids []string
				for _, o := range x.Executors.route(th, time.Now()) {
					ids = append(ids, o.ID)
				}
				if want := []string{"carl", "anna", "bert"}; !slices.Equal(ids, want) {
					t.Errorf("%s the restart, a thread that requires %v is offered to %v, want %v", name, th.Requires, ids, want)
				}
			}
		}
	})
}
