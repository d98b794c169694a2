package directory

import (
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Limits of messages that pass through (AM-67).
const (
	replyWithin      = 25 * time.Second // since the message arrived: handler 20 s < relay 25 s < client 30 s
	takeWithin       = 3 * time.Second  // for a poll to fetch the message; after this the agent counts as disconnected
	connectedFor     = 3 * time.Second  // an agent counts as connected for this long after a poll
	maxTransit       = 64               // messages to the agents of one owner that pass through at once
	transitShare     = 8                // of these from one sender; all unknown senders together count as one
	maxConnections   = 1 << 16          // credentials that are tracked as connected
	maxStrangerPolls = 512              // waiting polls whose credential has no mailbox: anybody can have a credential
)

// connections holds the credentials whose agents are polling for mail, with the messages that pass through to them. It
// is in memory only: a message that is lost in a crash was not answered, so its sender sends it again.
type connections struct {
	mu        sync.Mutex
	all       map[[32]byte]*connection
	strangers int
}

// connection is one credential whose agents poll.
type connection struct {
	wake     chan struct{} // closed by the next notify
	waiters  int           // waiting polls
	seen     time.Time     // when the last poll ended
	transits map[string]*transit
	pending  []*transit // not fetched by a poll yet, oldest first
}

// transit is a message that passes through.
type transit struct {
	id      string
	sender  wire.AgentID // "" if its signature could not be verified
	msg     wire.Message
	raw     []byte
	created time.Time
	replyBy time.Time
	taken   chan struct{}     // closed when a poll has fetched the message
	answer  chan transitReply // has capacity for one
}

// transitReply is the response that the sender gets.
type transitReply struct {
	status int
	body   []byte
}

func newConnections() *connections { return &connections{all: make(map[[32]byte]*connection)} }

// waiter is one poll of a credential.
type waiter struct {
	conns    *connections
	owner    [32]byte
	waits    bool
	stranger bool
}

// join registers a poll; the caller must call leave on the result. If too many polls are already waiting, the new poll
// does not wait and gets only stored mail.
func (c *connections) join(owner [32]byte, waits, mailbox bool) *waiter {
	w := &waiter{c, owner, waits, !mailbox}
	if !waits {
		return w
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.stranger && c.strangers >= maxStrangerPolls {
		w.waits = false
		return w
	}
	conn := c.all[owner]
	if conn == nil {
		if len(c.all) >= maxConnections {
			c.forget(time.Now())
		}
		if len(c.all) >= maxConnections {
			w.waits = false
			return w
		}
		conn = &connection{wake: make(chan struct{}), transits: make(map[string]*transit)}
		c.all[owner] = conn
	}
	conn.waiters++
	if w.stranger {
		c.strangers++
	}
	return w
}

// forget removes connections without a recent poll. The caller holds mu.
func (c *connections) forget(now time.Time) {
	for owner, conn := range c.all {
		if conn.waiters == 0 && len(conn.transits) == 0 && now.Sub(conn.seen) > connectedFor {
			delete(c.all, owner)
		}
	}
}

// wakeChannel returns a channel that the next new message closes. It is nil, and so never ready, for a poll that does
// not wait.
func (w *waiter) wakeChannel() <-chan struct{} {
	w.conns.mu.Lock()
	defer w.conns.mu.Unlock()
	if conn := w.conns.all[w.owner]; w.waits && conn != nil {
		return conn.wake
	}
	return nil
}

// leave ends the poll.
func (w *waiter) leave() {
	if !w.waits {
		return
	}
	w.conns.mu.Lock()
	defer w.conns.mu.Unlock()
	conn := w.conns.all[w.owner]
	conn.waiters--
	conn.seen = time.Now()
	if w.stranger {
		w.conns.strangers--
	}
}

// notify wakes the polls of a credential.
func (c *connections) notify(owner [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.all[owner]; conn != nil {
		conn.notify()
	}
}

// notify wakes the polls of this connection. The caller holds connections.mu.
func (conn *connection) notify() {
	close(conn.wake)
	conn.wake = make(chan struct{})
}

// offer queues a message for a connected agent. It returns false if no agent is connected, or if too many messages are
// already passing through.
func (c *connections) offer(owner [32]byte, o *transit, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil || conn.waiters == 0 && now.Sub(conn.seen) > connectedFor || !conn.hasRoom(o.sender) {
		return false
	}
	conn.transits[o.id] = o
	conn.pending = append(conn.pending, o)
	conn.notify()
	return true
}

// hasRoom reports whether another message of sender may pass through.
func (conn *connection) hasRoom(sender wire.AgentID) bool {
	if len(conn.transits) >= maxTransit {
		return false
	}
	n := 0
	for _, o := range conn.transits {
		if o.sender == sender {
			n++
		}
	}
	return n < transitShare
}

// take returns at most limit queued messages to a poll, and marks them as fetched. box and conv select messages; ""
// selects all.
func (c *connections) take(owner [32]byte, box wire.AgentID, conv wire.ConversationID, limit int) []*transit {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil {
		return nil
	}
	var taken []*transit
	rest := conn.pending[:0]
	for _, o := range conn.pending {
		if len(taken) == limit || box != "" && o.msg.To != box || conv != "" && o.msg.Conversation != conv {
			rest = append(rest, o)
			continue
		}
		close(o.taken)
		taken = append(taken, o)
	}
	clear(conn.pending[len(rest):])
	conn.pending = rest
	return taken
}

// find returns the message with this id that passes through to an agent of owner, or nil.
func (c *connections) find(owner [32]byte, id string) *transit {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.all[owner]; conn != nil {
		return conn.transits[id]
	}
	return nil
}

// withdraw ends the wait for a reply; later replies are refused. It returns false if a reply has already come.
func (c *connections) withdraw(owner [32]byte, o *transit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil || conn.transits[o.id] == nil {
		return false
	}
	delete(conn.transits, o.id)
	for i, p := range conn.pending {
		if p == o {
			conn.pending = append(conn.pending[:i], conn.pending[i+1:]...)
			break
		}
	}
	return true
}

// reply delivers a reply to the waiting sender. It returns false if no sender waits for it, because the sender has left
// or already has a reply.
func (c *connections) reply(owner [32]byte, id string, a transitReply) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil || conn.transits[id] == nil {
		return false
	}
	conn.transits[id].answer <- a // does not block: the channel has room for one reply, and the transit is deleted with it
	delete(conn.transits, id)
	return true
}

// count returns the number of credentials with a waiting poll.
func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, conn := range c.all {
		if conn.waiters > 0 {
			n++
		}
	}
	return n
}
