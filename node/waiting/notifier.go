package waiting

import "sync"

// Notifier wakes readers that wait for a change. Only a bounded number may wait.
type Notifier struct {
	max     int
	changed Signal
	mu      sync.Mutex
	waiting int
}

// NewNotifier returns a notifier for at most max readers.
func NewNotifier(max int) *Notifier { return &Notifier{max: max} }

// Notify wakes the readers.
func (n *Notifier) Notify() { n.changed.Broadcast() }

// Listen returns a channel that the next Notify closes, and a function to stop listening. ok is false if too many
// readers wait.
func (n *Notifier) Listen() (changed <-chan struct{}, leave func(), ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting >= n.max {
		return nil, nil, false
	}
	n.waiting++
	return n.changed.Wait(), func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.waiting--
	}, true
}
