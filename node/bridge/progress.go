package bridge

import (
	"sync"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Progress is what a hook, the program behind the node, reports before it answers a message of a foreign peer. Reports
// are not stored and may be lost, so the answer must repeat everything that counts.
type Progress struct {
	Address      string // of the peer
	MessageID    wire.MessageID
	Conversation wire.ConversationID
	Result       hook.Result
}

// maxQueuedProgress limits the reports that wait for one follower; Publish drops any others. A report is at most as
// large as a hook's output, 256 KiB.
const maxQueuedProgress = 32

// ProgressFeed passes progress to its followers without blocking. The zero value is ready for concurrent use.
type ProgressFeed struct {
	mu        sync.Mutex
	followers map[chan Progress]struct{}
}

// Publish gives p to every follower whose channel has room for it.
func (f *ProgressFeed) Publish(p Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.followers {
		select {
		case ch <- p:
		default:
		}
	}
}

// Follow returns a channel of reports. The caller must call stop when it has read enough; stop does not close the
// channel.
func (f *ProgressFeed) Follow() (reports <-chan Progress, stop func()) {
	ch := make(chan Progress, maxQueuedProgress)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.followers == nil {
		f.followers = make(map[chan Progress]struct{})
	}
	f.followers[ch] = struct{}{}
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.followers, ch)
	}
}
