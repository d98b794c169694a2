package waiting

import (
	"testing"
)

// TestFeeds: a slow reader loses values and learns how many; it holds up neither the sender nor another reader.
func TestFeeds(t *testing.T) {
	var feeds Feeds[int]
	feeds.Tell(0) // nobody watches
	slow, quick := feeds.Watch(1), feeds.Watch(1)
	for n := range 3 {
		feeds.Tell(n)
		if got := <-quick.C(); got != n {
			t.Errorf("the quick reader got %d, want %d", got, n)
		}
	}
	if got := <-slow.C(); got != 0 || slow.Lost() != 2 || slow.Lost() != 0 || quick.Lost() != 0 {
		t.Errorf("the slow reader got %d, and lost another number than 2", got)
	}
	slow.Close()
	feeds.Tell(3)
	if len(slow.C()) != 0 || len(quick.C()) != 1 {
		t.Error("a closed feed got a value, or an open one did not")
	}
}
