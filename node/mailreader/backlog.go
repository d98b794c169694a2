package mailreader

import (
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The bounds on the time for which an item is postponed.
const (
	minPostpone = time.Minute
	maxPostpone = 10 * time.Minute
)

// backlog is the node's position in its mailbox. An item that cannot be accepted now stays in the mailbox; the node
// reads on and asks for the item again later, so that a stranger who is over a limit delays nobody else's mail. Within
// a conversation, no other message overtakes a postponed item. The zero value starts at the oldest item.
type backlog struct {
	restart time.Time              // when to start at the oldest item again; zero if no item was postponed
	after   string                 // the last item read, once an item was postponed
	items   map[string]bool        // ids of the postponed items
	convs   map[store.ConvKey]bool // their conversations
}

// position returns the id of the item after which to read on, or "" to start at the oldest item.
func (b *backlog) position(now time.Time) string {
	if !b.restart.IsZero() && !now.Before(b.restart) {
		*b = backlog{}
	}
	return b.after
}

// maxPoll returns how long a poll may last.
func (b *backlog) maxPoll(now time.Time) time.Duration {
	if b.restart.IsZero() {
		return pollWait
	}
	return min(pollWait, max(time.Second, b.restart.Sub(now)))
}

// hasAll reports whether all items were postponed before, which means that the mailbox ignores the position.
func (b *backlog) hasAll(items []client.RelayItem) bool {
	for _, item := range items {
		if !b.items[item.ID] {
			return false
		}
	}
	return len(items) > 0
}

// deferFollower postpones item if it or an earlier item of its conversation was postponed, and reports whether it did.
func (b *backlog) deferFollower(item client.RelayItem) bool {
	waits := b.items[item.ID] || len(b.convs) > 0 && b.convs[conversationOf(item)]
	if waits {
		b.items[item.ID] = true
		b.advance(item)
	}
	return waits
}

// postpone leaves an item in the mailbox for the duration of pause, or for maxPostpone if pause is not positive.
func (b *backlog) postpone(item client.RelayItem, pause time.Duration, now time.Time) {
	if b.items == nil {
		b.items, b.convs = make(map[string]bool), make(map[store.ConvKey]bool)
	}
	b.items[item.ID], b.convs[conversationOf(item)] = true, true
	if pause <= 0 {
		pause = maxPostpone
	}
	at := now.Add(min(max(pause, minPostpone), maxPostpone))
	if b.restart.IsZero() || at.Before(b.restart) {
		b.restart = at
	}
	b.advance(item)
}

// advance moves the position behind item, once an item was postponed.
func (b *backlog) advance(item client.RelayItem) {
	if !b.restart.IsZero() {
		b.after = item.ID
	}
}

// conversationOf returns the conversation that an unverified message names.
func conversationOf(item client.RelayItem) store.ConvKey {
	if item.Call != nil {
		return store.ConvKey{ID: item.ID} // no call waits for another one
	}
	tree, err := wire.ParseObject(item.Message)
	if err != nil {
		return store.ConvKey{}
	}
	return store.ConvKey{Peer: tree.GetStr("from"), ID: tree.GetStr("conversation_id")}
}
