package mailbox

import (
	"crypto/rand"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Life is how long a message waits (AM-68).
const Life = 7 * 24 * time.Hour

// Bounds of mailboxes (AM-68).
const (
	MaxMail       = 500      // messages in a mailbox
	MaxMailBytes  = 50 << 20 // bytes of the messages in a mailbox
	SenderDivisor = 10       // one sender may use a tenth of a mailbox; all unknown senders together use another tenth

	// MaxAllMail and MaxAllMailBytes bound all mailboxes together. Above half of either, a mailbox may hold only a
	// tenth of its own limit, so that a few large mailboxes cannot use up everything.
	MaxAllMail      = 100_000
	MaxAllMailBytes = 4 << 30

	keyDigits = 16 // hex digits at the start of a key: the time of the message in microseconds
	keyRandom = 10 // random characters at the end of a key

	sweepEvery = time.Minute // between two removals of expired mail from the counts
)

// Mail describes a message that waits in a mailbox.
type Mail struct {
	Box     wire.AgentID        `json:"box"`            // the recipient, whose mailbox it is
	From    wire.AgentID        `json:"from,omitempty"` // "" if the sender has no card here; for a call, the HMAC of its caller's address
	Conv    wire.ConversationID `json:"conversation"`
	Size    int                 `json:"size"`
	Call    bool                `json:"call,omitempty"` // an A2A call (package a2arelay), not a message
	Created time.Time           `json:"created_at"`

	// Networks are the networks of the caller's address, narrowest first, at most maxNetworks; only a call has them.
	// Each may use twice as much of the mailbox as the next narrower one (AM-42).
	Networks []wire.AgentID `json:"networks,omitempty"`
}

const maxNetworks = 2 // of a Mail

// Counts keeps in memory the number and size of the messages that wait in mailboxes. A message is counted before it
// is stored and under a lock, so the limits hold for concurrent senders. A flood beyond a limit causes no store
// access. Counts is safe for concurrent use.
type Counts struct {
	mu     sync.Mutex
	loaded bool                   // the counts include the stored mail
	last   int64                  // the number in the newest key
	swept  time.Time              // when sweep last ran
	mails  map[string]countedMail // by the key of the message in the store
	all    Usage                  // of all mailboxes together
	boxes  map[internedID]Usage
	shares map[share]Usage
}

// countedMail is what the counts keep of a Mail.
type countedMail struct {
	box, from internedID
	networks  [maxNetworks]internedID // as in Mail; zero values fill the rest
	size      int32
	call      bool
	created   int64 // seconds since 1970
}

// internedID takes less memory than an id, because many messages share an id.
type internedID = unique.Handle[wire.AgentID]

func newCountedMail(m Mail) countedMail {
	c := countedMail{unique.Make(m.Box), unique.Make(m.From), [maxNetworks]internedID{}, int32(min(m.Size, math.MaxInt32)), m.Call, m.Created.Unix()}
	for i, network := range m.Networks[:min(len(m.Networks), maxNetworks)] {
		c.networks[i] = unique.Make(network)
	}
	return c
}

// senderShares returns the share of the message's sender and, for a call, the shares of its Networks.
func (m countedMail) senderShares() []share {
	shares := []share{{m.box, m.from}}
	for _, network := range m.networks {
		if network != (internedID{}) {
			shares = append(shares, share{m.box, network})
		}
	}
	return shares
}

// allShares returns the shares in which the message is counted: its senderShares and, for a call, that of anyCaller.
func (m countedMail) allShares() []share {
	shares := m.senderShares()
	if m.call {
		shares = append(shares, share{m.box, anyCaller})
	}
	return shares
}

// Usage is a number of messages and their size in bytes.
type Usage struct{ N, Size int }

func (u Usage) with(m countedMail) Usage    { return Usage{u.N + 1, u.Size + int(m.size)} }
func (u Usage) without(m countedMail) Usage { return Usage{u.N - 1, u.Size - int(m.size)} }
func (u Usage) exceeds(max Usage) bool      { return u.N > max.N || u.Size > max.Size }

// share identifies the part of a mailbox that a sender or a network uses. from is "" for all senders without a card
// together, and anyCaller for all calls together.
type share struct{ box, from internedID }

// mailboxLimit returns how much a mailbox may hold while all mailboxes hold total. Zero means that the directory is
// full.
func mailboxLimit(total Usage) Usage {
	switch {
	case total.exceeds(Usage{MaxAllMail - 1, MaxAllMailBytes - wire.MaxMessage}):
		return Usage{}
	case total.exceeds(Usage{MaxAllMail / 2, MaxAllMailBytes / 2}):
		return Usage{MaxMail / 10, MaxMailBytes / 10}
	}
	return Usage{MaxMail, MaxMailBytes}
}

// NewKey returns a key that sorts after every key that was counted or returned before, even within the same
// microsecond. A message must not overtake an earlier one of its conversation.
func (c *Counts) NewKey(now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, now.UnixMicro())
	return fmt.Sprintf("%016x%s", c.last, strings.ToLower(rand.Text()[:keyRandom]))
}

// Learn counts a message that another process stored.
func (c *Counts) Learn(key string, m Mail) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded {
		c.drop(key)
		c.add(key, newCountedMail(m))
	}
}

// Invalidate makes the next Load build the counts again.
func (c *Counts) Invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loaded = false
}

// Admit counts a message that is about to be stored. If the message would exceed a limit, the error names the limit. A
// message that is counted already under key is replaced, or kept after an error.
func (c *Counts) Admit(key string, m Mail, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, replaces := c.mails[key]
	c.drop(key)
	err := c.admit(key, newCountedMail(m), now)
	if err != nil && replaces {
		c.add(key, old)
	}
	return err
}

// admit is Admit for a new key. The caller holds mu.
func (c *Counts) admit(key string, m countedMail, now time.Time) error {
	c.sweep(now)
	limit := mailboxLimit(c.all)
	switch {
	case limit == Usage{}:
		return wire.ErrUnavailable.At("the mailboxes of this directory are full").After(time.Hour)
	case c.shares[share{m.box, m.from}].with(m).exceeds(Usage{limit.N / SenderDivisor, limit.Size / SenderDivisor}):
		return wire.ErrRateLimited.At("too much mail from this sender is already waiting").After(time.Hour)
	case m.call && !c.hasRoomForCall(m, limit):
		return wire.ErrRateLimited.At("too many A2A calls are already waiting").After(time.Hour)
	case c.boxes[m.box].with(m).exceeds(limit):
		return wire.ErrUnavailable.At("the mailbox is full").After(time.Hour)
	}
	c.add(key, m)
	return nil
}

// anyCaller is the sender for which all calls of a mailbox are counted together.
var anyCaller = unique.Make(wire.AgentID("a2a:"))

// hasRoomForCall reports whether a mailbox takes another call. Anybody can call, so all calls together may use at most
// half of a mailbox. Once half of that is used, one address may use only a hundredth of the mailbox, and a network
// around it twice as much as the next narrower one (AM-42). The caller holds mu.
func (c *Counts) hasRoomForCall(m countedMail, limit Usage) bool {
	all := c.shares[share{m.box, anyCaller}]
	if all.with(m).exceeds(Usage{limit.N / 2, limit.Size / 2}) {
		return false
	}
	if !all.exceeds(Usage{limit.N / 4, limit.Size / 4}) {
		return true
	}
	for i, s := range m.senderShares() {
		if width := 1 << i; c.shares[s].with(m).exceeds(Usage{max(limit.N/100, 1) * width, limit.Size / 100 * width}) {
			return false
		}
	}
	return true
}

// add counts a message. The caller holds mu.
func (c *Counts) add(key string, m countedMail) {
	if n, err := strconv.ParseInt(key[:min(len(key), keyDigits)], 16, 64); err == nil {
		c.last = max(c.last, n)
	}
	c.mails[key] = m
	c.all, c.boxes[m.box] = c.all.with(m), c.boxes[m.box].with(m)
	for _, s := range m.allShares() {
		c.shares[s] = c.shares[s].with(m)
	}
}

// Remove removes a message that was deleted or not stored. It ignores an unknown key.
func (c *Counts) Remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(key)
}

// drop is Remove. The caller holds mu.
func (c *Counts) drop(key string) {
	m, ok := c.mails[key]
	if !ok {
		return
	}
	delete(c.mails, key)
	c.all = c.all.without(m)
	if c.boxes[m.box] = c.boxes[m.box].without(m); c.boxes[m.box].N == 0 {
		delete(c.boxes, m.box)
	}
	for _, s := range m.allShares() {
		if c.shares[s] = c.shares[s].without(m); c.shares[s].N == 0 {
			delete(c.shares, s)
		}
	}
}

// sweep removes expired mail from the counts, at most once per sweepEvery. The caller holds mu.
func (c *Counts) sweep(now time.Time) {
	if now.Sub(c.swept).Abs() < sweepEvery {
		return
	}
	c.swept = now
	for key, m := range c.mails {
		if !now.Before(time.Unix(m.created, 0).Add(Life)) {
			c.drop(key)
		}
	}
}

// Total returns the Usage of all mailboxes together. full means that even an empty mailbox takes no message.
func (c *Counts) Total(now time.Time) (all Usage, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep(now)
	return c.all, mailboxLimit(c.all) == Usage{}
}

// Load builds the counts from the stored mail, unless they are built already. list must call add for each message.
func (c *Counts) Load(now time.Time, list func(add func(key string, m Mail)) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded {
		return nil
	}
	c.mails, c.boxes, c.shares = make(map[string]countedMail), make(map[internedID]Usage), make(map[share]Usage)
	c.all, c.swept = Usage{}, now
	if err := list(func(key string, m Mail) { c.add(key, newCountedMail(m)) }); err != nil {
		return err
	}
	c.loaded = true
	return nil
}
