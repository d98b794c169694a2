package directory

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// changes reads the feed from since to its end, in pages of limit.
func (w *world) changes(since string, limit int) (lines []string, next string) {
	w.t.Helper()
	for {
		var page wire.ChangePage
		got := w.do("GET", fmt.Sprintf("/v1/changes?limit=%d&since=%s", limit, url.QueryEscape(since)), "")
		if err := json.Unmarshal(got.Body.Bytes(), &page); err != nil || got.Code != 200 {
			w.t.Fatalf("changes = %d %s", got.Code, got.Body)
		}
		for _, c := range page.Changes {
			line := c.Change + " " + string(c.AgentID)
			if c.Reason != "" {
				line += ": " + c.Reason
			}
			if (c.Record != nil) != slices.Contains([]string{wire.ChangeRegistered, wire.ChangeRenewed, wire.ChangeKey, wire.ChangeVerified}, c.Change) {
				w.t.Errorf("%s has record %v", line, c.Record)
			}
			lines = append(lines, line)
		}
		since = page.Next
		if !page.More {
			return lines, since
		}
	}
}

func (w *world) wantChanges(since string, want ...string) (next string) {
	w.t.Helper()
	for limit := 1; limit <= 3; limit++ {
		var got []string
		if got, next = w.changes(since, limit); !cmp.Equal(got, want) {
			w.t.Errorf("changes in pages of %d: %q, want %q", limit, got, want)
		}
	}
	return next
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.wantChanges("")
		for i := range 3 {
			w.register(alice, testCard(fmt.Sprintf("am_%d", i)))
			time.Sleep(time.Second)
		}
		start := w.wantChanges("", "registered am_0", "registered am_1", "registered am_2")
		w.wantChanges(start)
		want(t, w.do("PUT", "/v1/agents/am_1", "", withBearer(alice)...), 200, "")
		time.Sleep(time.Second)
		want(t, w.do("DELETE", "/v1/agents/am_0", "", withBearer(alice)...), 204, "")
		time.Sleep(time.Second)
		if err := w.reg.Remove(t.Context(), "am_2", "spam", "cli"); err != nil {
			t.Fatal(err)
		}
		next := w.wantChanges(start, "renewed am_1", "withdrawn am_0", "removed am_2: spam")
		time.Sleep(time.Second)
		w.register(alice, testCard("am_2"))
		time.Sleep(time.Second)
		want(t, w.do("DELETE", "/v1/agents/am_2", "", withBearer(alice)...), 204, "")
		w.wantChanges(next, "withdrawn am_2") // the earlier removal does not count

		changed := testCard("am_1", text("public_key", testKey("other").PublicText()))
		stamp := proof(testKey("other"), "PUT", "/v1/agents/am_1", testBase, time.Now(), changed)
		want(t, w.do("PUT", "/v1/agents/am_1", string(changed.JSON()), append(withBearer(alice), "AgentMesh-Key-Proof", stamp)...), 200, "")
		w.wantChanges(next, "withdrawn am_2", "key_changed am_1")
		time.Sleep(lifetime)
		w.wantChanges(next, "withdrawn am_2", "expired am_1") // at once, even before Sweep runs; am_2 is no longer reserved

		// A year later the position is still valid.
		time.Sleep(300 * 24 * time.Hour)
		w.register(bob, testCard("am_new"))
		got, _ := w.changes(next, 9)
		if len(got) == 0 || got[len(got)-1] != "registered am_new" {
			t.Errorf("after a year: %q", got)
		}
	})
}

func TestChangesBadRequests(t *testing.T) {
	w, other := newWorldWithCards(t, 2), newWorldWithCards(t, 2)
	_, next := w.changes("", 1)
	_, foreign := other.changes("", 1)
	_, list := w.list("limit=1")
	for _, query := range []string{
		"since=x", "since=" + foreign, "since=" + list, "since=" + next[1:], "limit=0", "limit=101", "wait=31", "wait=-1", "wait=x", "%zz",
	} {
		want(t, w.do("GET", "/v1/changes?"+query, ""), 400, "INVALID_MESSAGE")
	}
	want(t, w.do("GET", "/v1/agents?limit=1&cursor="+next, ""), 400, "INVALID_MESSAGE")
	if got := w.do("GET", "/v1/changes?since="+next, ""); got.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control %q", got.Header().Get("Cache-Control"))
	}
}

// TestChangesAfterRestore: a position that the feed has not reached is refused, even if this directory made it before
// its database was restored from a backup. Its reader would miss all changes up to that position.
func TestChangesAfterRestore(t *testing.T) {
	w := newWorldWithCards(t, 2)
	_, end := w.changes("", 9)
	want(t, w.do("GET", "/v1/changes?since="+end, ""), 200, "")
	later, err := w.reg.cursors.Seal(t.Context(), "am_9", store.Position{Seq: 3}, feedFilters)
	if err != nil {
		t.Fatal(err)
	}
	want(t, w.do("GET", "/v1/changes?wait=30&since="+later, ""), 400, "INVALID_MESSAGE")
	time.Sleep(time.Millisecond) // a renewal in the millisecond of the registration counts as a part of it
	want(t, w.do("PUT", "/v1/agents/am_000", "", withBearer(alice)...), 200, "")
	want(t, w.do("GET", "/v1/changes?since="+later, ""), 200, "")
	w.wantChanges(end, "renewed am_000")
}

// TestChangesWait: the next write wakes the waiting readers, and their number is bounded.
func TestChangesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldWithCards(t, 1)
		_, next := w.changes("", 9)
		woken := make(chan time.Duration)
		for range 3 {
			go func() {
				start := time.Now()
				page, err := w.reg.Changes(t.Context(), next, 9, maxWait)
				if err != nil || len(page.Changes) != 1 || page.Changes[0].AgentID != "am_late" {
					t.Errorf("woken with %+v, %v", page, err)
				}
				woken <- time.Since(start)
			}()
		}
		time.Sleep(7 * time.Second)
		w.register(alice, testCard("am_late"))
		for range 3 {
			if took := <-woken; took != 7*time.Second {
				t.Errorf("woken after %v, want 7s", took)
			}
		}
		_, next = w.changes("", 9)
		start := time.Now()
		if page, err := w.reg.Changes(t.Context(), next, 9, time.Hour); err != nil || len(page.Changes) != 0 || page.Next != next || time.Since(start) != maxWait {
			t.Errorf("nothing came: %+v, %v after %v", page, err, time.Since(start))
		}
		for range maxWaiting {
			leave, _ := w.reg.waiters.Enter("")
			defer leave()
		}
		start = time.Now()
		if _, err := w.reg.Changes(t.Context(), next, 9, maxWait); err != nil || time.Since(start) != 0 {
			t.Errorf("one reader too many waited %v, %v", time.Since(start), err)
		}
	})
}

// Changes returns a page of the feed.
func (r *Registry) Changes(ctx context.Context, since string, limit int, wait time.Duration) (page wire.ChangePage, err error) {
	data, err := r.changesAfter(ctx, since, limit, wait)
	if err == nil {
		err = json.Unmarshal(data, &page)
	}
	return page, err
}
