package node

import (
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What was put off is asked for again after as long as its refusal says, within these bounds.
const (
	putOffLeast = time.Minute
	putOffMost  = 10 * time.Minute
)

// mailbag is how far a node has gone through its mailbox. What cannot be taken now stays there and is asked for again
// later; meanwhile the node goes on behind it, so that a stranger who is over a limit holds up nobody else's mail. Within
// a conversation nothing overtakes what was put off. The zero value begins at the oldest mail.
type mailbag struct {
	again time.Time // when to begin at the oldest mail again; zero: nothing was put off
	after string    // the last item that was seen, once something was put off
	items map[string]bool
	convs map[store.ConvKey]bool
}

// open returns behind which item to go on.
func (b *mailbag) open(now time.Time) string {
	if !b.again.IsZero() && !now.Before(b.again) {
		*b = mailbag{}
	}
	return b.after
}

// wait is how long a poll may last.
func (b *mailbag) wait(now time.Time) time.Duration {
	if b.again.IsZero() {
		return relayWait
	}
	return min(relayWait, max(time.Second, b.again.Sub(now)))
}

// knows says that all of items were put off before: the relay goes on giving them.
func (b *mailbag) knows(items []client.RelayItem) bool {
	for _, item := range items {
		if !b.items[item.ID] {
			return false
		}
	}
	return len(items) > 0
}

// holds says whether an item has to wait for another one of its conversation, and puts it off then.
func (b *mailbag) holds(item client.RelayItem) bool {
	waits := b.items[item.ID] || len(b.convs) > 0 && b.convs[claimed(item)]
	if waits {
		b.items[item.ID] = true
		b.passed(item)
	}
	return waits
}

// putOff leaves an item in the mailbox for a while.
func (b *mailbag) putOff(item client.RelayItem, after time.Duration, now time.Time) {
	if b.items == nil {
		b.items, b.convs = make(map[string]bool), make(map[store.ConvKey]bool)
	}
	b.items[item.ID], b.convs[claimed(item)] = true, true
	if after <= 0 {
		after = putOffMost
	}
	at := now.Add(min(max(after, putOffLeast), putOffMost))
	if b.again.IsZero() || at.Before(b.again) {
		b.again = at
	}
	b.passed(item)
}

// passed goes on behind an item, where one before it was left.
func (b *mailbag) passed(item client.RelayItem) {
	if !b.again.IsZero() {
		b.after = item.ID
	}
}

// claimed is the conversation that the message names, whoever wrote it.
func claimed(item client.RelayItem) store.ConvKey {
	tree, err := wire.ParseObject(item.Message)
	if err != nil {
		return store.ConvKey{}
	}
	return store.ConvKey{Peer: tree.GetStr("from"), ID: tree.GetStr("conversation_id")}
}
