package mailbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Limits of messages that pass through: they are handed to a connected agent instead of being stored in its mailbox
// (AM-67).
const (
	ReplyWithin        = 25 * time.Second // after arrival; an agent's handler may take 20 s, and a client waits 30 s
	takeWithin         = 3 * time.Second  // for a poll to fetch the message; if none does, the message is stored
	ConnectedFor       = 3 * time.Second  // an agent counts as connected for this long after a poll that waited
	maxTransit         = 64               // messages to the agents of one owner that pass through at once
	MaxTransitOfSender = 8                // of these, from one sender; all unknown senders together count as one
	maxConnections     = 1 << 16          // credentials that are tracked as connected
	MaxStrangerPolls   = 512              // waiting polls whose credential has only cards without a mailbox
)

// Connections holds the credentials whose agents are polling for mail, with the messages that pass through to them. It
// is in memory only: the sender of a message that is lost in a crash got no answer, so it sends the message again.
type Connections struct {
	mu        sync.Mutex
	all       map[[32]byte]*connection // by the hash of the credential, called owner below
	strangers int                      // waiting polls whose credential has no mailbox
}

type connection struct {
	waiters  []*Waiter           // waiting polls
	seen     time.Time           // when a waiting poll last ended
	transits map[string]*Transit // by id
	pending  []*Transit          // not fetched by a poll yet, oldest first
}

// Transit is a message that passes through while its sender waits for the reply.
type Transit struct {
	ID      string
	Sender  wire.AgentID // "" if its signature could not be verified
	Message wire.Message
	Raw     []byte
	Created time.Time
	ReplyBy time.Time
	fetched chan struct{} // closed when a poll has fetched the message
	answer  chan Reply    // has capacity for one
}

// Reply is the response that the sender gets.
type Reply struct {
	Status int
	Body   []byte
}

// NewConnections returns connections without any agent.
func NewConnections() *Connections { return &Connections{all: make(map[[32]byte]*connection)} }

// Waiter is one poll of a credential.
type Waiter struct {
	conns    *Connections
	owner    [32]byte
	waits    bool
	stranger bool   // the credential has no mailbox
	wake     func() // called when there may be mail; nil before OnWake
}

// Waits reports whether the poll may wait for mail.
func (w *Waiter) Waits() bool { return w.waits }

// Join registers a poll; the caller must call Leave on the result. waits reports whether the poll asks to wait for
// mail, hasMailbox whether its credential has a mailbox. If too many strangers poll, or too many credentials are
// connected, the new poll does not wait.
func (c *Connections) Join(owner [32]byte, waits, hasMailbox bool) *Waiter {
	w := &Waiter{conns: c, owner: owner, waits: waits, stranger: !hasMailbox}
	if !waits {
		return w
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.stranger && c.strangers >= MaxStrangerPolls {
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
		conn = &connection{transits: make(map[string]*Transit)}
		c.all[owner] = conn
	}
	conn.waiters = append(conn.waiters, w)
	if w.stranger {
		c.strangers++
	}
	return w
}

// forget removes connections without a recent poll. The caller holds mu.
func (c *Connections) forget(now time.Time) {
	for owner, conn := range c.all {
		if len(conn.waiters) == 0 && len(conn.transits) == 0 && now.Sub(conn.seen) > ConnectedFor {
			delete(c.all, owner)
		}
	}
}

// OnWake makes the relay call wake for every new message until the poll leaves. wake must not block. A poll that does
// not wait is never woken.
func (w *Waiter) OnWake(wake func()) {
	w.conns.mu.Lock()
	defer w.conns.mu.Unlock()
	w.wake = wake
}

// Leave ends the poll.
func (w *Waiter) Leave() {
	if !w.waits {
		return
	}
	w.conns.mu.Lock()
	defer w.conns.mu.Unlock()
	conn := w.conns.all[w.owner]
	conn.waiters = slices.DeleteFunc(conn.waiters, func(other *Waiter) bool { return other == w })
	conn.seen = time.Now()
	if w.stranger {
		w.conns.strangers--
	}
}

// Notify wakes the polls of a credential.
func (c *Connections) Notify(owner [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.all[owner]; conn != nil {
		conn.notify()
	}
}

// NotifyAll wakes the polls of all credentials.
func (c *Connections) NotifyAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		conn.notify()
	}
}

// notify wakes the polls of this connection. The caller holds Connections.mu.
func (conn *connection) notify() {
	for _, w := range conn.waiters {
		if w.wake != nil {
			w.wake()
		}
	}
}

// PassThrough offers a message to a connected agent of owner and waits for the reply. It returns false if no agent is
// connected, if too many messages pass through, if no agent fetched or answered it in time, or if ctx ended.
func (c *Connections) PassThrough(ctx context.Context, owner [32]byte, t *Transit) (Reply, bool) {
	t.fetched, t.answer = make(chan struct{}), make(chan Reply, 1)
	if !c.offer(owner, t, time.Now()) {
		return Reply{}, false
	}
	takeTimeout := time.After(takeWithin)
	end := time.After(ReplyWithin)
	fetched := (<-chan struct{})(t.fetched)
	for {
		select {
		case reply := <-t.answer:
			return reply, true
		case <-fetched:
			fetched, takeTimeout = nil, nil // a closed channel would be ready again at once
			continue
		case <-takeTimeout:
			if !c.withdraw(owner, t, true) { // true: only if no poll has fetched it
				continue // a poll fetched the message at the same moment
			}
			return Reply{}, false
		case <-end:
		case <-ctx.Done():
		}
		if c.withdraw(owner, t, false) {
			return Reply{}, false
		}
		return <-t.answer, true // the reply came at the same moment
	}
}

// offer queues a message for a connected agent. It returns false if no agent is connected, or if too many messages are
// passing through, in total or from this sender.
func (c *Connections) offer(owner [32]byte, t *Transit, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil || len(conn.waiters) == 0 && now.Sub(conn.seen) > ConnectedFor || !conn.hasRoom(t.Sender) {
		return false
	}
	conn.transits[t.ID] = t
	conn.pending = append(conn.pending, t)
	conn.notify()
	return true
}

// hasRoom reports whether another message of this sender may pass through.
func (conn *connection) hasRoom(sender wire.AgentID) bool {
	if len(conn.transits) >= maxTransit {
		return false
	}
	n := 0
	for _, t := range conn.transits {
		if t.Sender == sender {
			n++
		}
	}
	return n < MaxTransitOfSender
}

// Take returns at most limit queued messages to a poll, and marks them as fetched. box and conv restrict the messages;
// "" means no restriction.
func (c *Connections) Take(owner [32]byte, box wire.AgentID, conv wire.ConversationID, limit int) []*Transit {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil {
		return nil
	}
	var taken []*Transit
	conn.pending = slices.DeleteFunc(conn.pending, func(t *Transit) bool {
		if len(taken) == limit || box != "" && t.Message.To != box || conv != "" && t.Message.Conversation != conv {
			return false
		}
		close(t.fetched)
		taken = append(taken, t)
		return true
	})
	return taken
}

// Find returns the message with this id that passes through to an agent of owner, or nil.
func (c *Connections) Find(owner [32]byte, id string) *Transit {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.all[owner]; conn != nil {
		return conn.transits[id]
	}
	return nil
}

// withdraw ends the wait for a reply; later replies are refused. It returns false if a reply has already come. With
// onlyPending, it also returns false if a poll has fetched the message.
func (c *Connections) withdraw(owner [32]byte, t *Transit, onlyPending bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil || conn.transits[t.ID] == nil || onlyPending && !slices.Contains(conn.pending, t) {
		return false
	}
	delete(conn.transits, t.ID)
	conn.pending = slices.DeleteFunc(conn.pending, func(p *Transit) bool { return p == t })
	return true
}

// Reply delivers an agent's reply to the sender of t. It returns [wire.ErrLateReply] if the sender has left or already
// has a reply. Other errors mean that the reply is invalid.
func (c *Connections) Reply(owner [32]byte, t *Transit, raw []byte) error {
	status, err := CheckReply(t.Message, raw)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.all[owner]
	if conn == nil || conn.transits[t.ID] == nil {
		return wire.ErrLateReply
	}
	conn.transits[t.ID].answer <- Reply{status, raw} // does not block: there is room for one reply, and the transit is deleted with it
	delete(conn.transits, t.ID)
	return nil
}

// Strangers returns the number of waiting polls whose credential has no mailbox.
func (c *Connections) Strangers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.strangers
}

// Count returns the number of credentials with a waiting poll.
func (c *Connections) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, conn := range c.all {
		if len(conn.waiters) > 0 {
			n++
		}
	}
	return n
}
