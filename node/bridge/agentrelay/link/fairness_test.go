package link

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// TestFeedIsShared: an agent that sends without end does not push the items of others out of the feed. If all agents
// have equally many items, the oldest item goes (AR-56).
func TestFeedIsShared(t *testing.T) {
	f := newItemLog()
	add := func(from string, n int) {
		f.add(FeedItem{ID: fmt.Sprint(from, n), From: from, At: time.Now()})
	}
	for n := range 3 {
		add("quiet", n)
	}
	for n := range 3 * feedSize {
		add("loud", n)
	}
	add("late", 0)
	newest := f.latest(feedSize + 1)
	if len(newest) != feedSize || newest[0].From != "late" || newest[1].ID != fmt.Sprint("loud", 3*feedSize-1) || newest[feedSize-1].ID != "quiet0" {
		t.Errorf("%d items, from %+v to %+v", len(newest), newest[0], newest[len(newest)-1])
	}
	f = newItemLog()
	for n := range feedSize + 1 {
		add("agent"+strconv.Itoa(n), 0)
	}
	if all := f.latest(feedSize); all[len(all)-1].From != "agent1" {
		t.Errorf("of one item each, that of %s is the oldest, want agent1", all[len(all)-1].From)
	}
}
