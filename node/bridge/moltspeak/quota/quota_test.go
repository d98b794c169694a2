package quota

import (
	"fmt"
	"testing"
	"time"
)

// TestRefusedMessageCostsNothing: a message that the quota of the organization refuses does not use up the quota of its
// sender.
func TestRefusedMessageCostsNothing(t *testing.T) {
	k, now := NewKnown(), time.Now()
	for i := range 2 * perOrg { // more than a single agent may send
		if _, ok := k.Take(fmt.Sprintf("agent%d@acme", i%20), "acme", now); !ok {
			t.Fatalf("message %d was refused", i)
		}
	}
	for range 3 * perAgent {
		if wait, ok := k.Take("late@acme", "acme", now); ok || wait > time.Minute/perOrg {
			t.Fatalf("allowed %t, wait %v: the organization has used up its messages", ok, wait)
		}
	}
	now = now.Add(time.Minute)
	for i := range 2 * perAgent {
		if _, ok := k.Take("late@acme", "acme", now); !ok {
			t.Fatalf("message %d a minute later was refused", i)
		}
	}
}
