package exchange

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestChangesOfOneMillisecond: changes within one millisecond get different update times, so that a client that polls
// misses none.
func TestChangesOfOneMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.executor("bob")
		ref := l.request("agent", "{intent: look}")
		seen := map[time.Time]bool{l.thread(ref).Updated: true}
		l.status("bob", ref, "claimed")
		for n := range 5 {
			if now := l.thread(ref).Updated; seen[now] {
				t.Fatalf("change %d has the time of another, %v", n, now)
			}
			seen[l.thread(ref).Updated] = true
			l.status("bob", ref, "in_progress, message: still here")
		}
		before := l.thread(ref).Updated
		if ahead := time.Until(before); ahead > 10*time.Millisecond {
			t.Errorf("the last change lies %v ahead", ahead)
		}
		time.Sleep(time.Hour)
		l.status("bob", ref, "completed")
		if th := l.thread(ref); time.Until(th.Updated) > 0 || !th.Updated.After(before) {
			t.Errorf("an hour later: %v", th.Updated)
		}
	})
}

// TestThreadIsKnownByWhatItShows: a commit reaches the store before the index. A requester that read a suggestion in
// between could not accept it, because its id was unknown.
func TestThreadIsKnownByWhatItShows(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ref := l.request("carol", "{intent: mow and rake}")
	l.status("bob", ref, "claimed")
	late := labOn(t, l.store) // its index is older than the commit
	late.thread(ref)
	l.do("bob", "- suggestion: {id: s1, type: split, re: "+ref+", proposed: [{intent: mow}, {intent: rake}], reason: two jobs}")
	if late.thread(ref).FindSuggestion("s1") == nil {
		t.Fatal("the suggestion is not there")
	}
	late.do("carol", "- reply: {re: s1, accept: true}")
}
