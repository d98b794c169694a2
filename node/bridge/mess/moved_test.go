package mess

import (
	"testing"
	"testing/synctest"
	"time"
)

// Changes of one millisecond have times of their own, so that nobody who looks at a thread now and then misses one.
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
