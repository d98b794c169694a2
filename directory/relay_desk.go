package directory

import (
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// When a message passes through (AM-67).
const (
	replyWithin = 25 * time.Second // from its receipt: handler 20 s < relay 25 s < client 30 s
	takeWithin  = 3 * time.Second  // else the agent has gone between two polls
	seenWithin  = 3 * time.Second  // after a poll the agent counts as connected
	maxOffers   = 64               // messages of one agent's owner that pass through at once
	offerShare  = 8                // of one sender; those that nobody knows share as many
	maxDesks    = 1 << 16          // credentials that we know as connected
	maxGuests   = 512              // polls that wait without a mailbox: anybody can have a credential
)

// desks are the credentials whose agents take their mail now, with what passes through to them. It lives in memory:
// what a crash loses was not answered, and its sender sends it again.
type desks struct {
	mu     sync.Mutex
	all    map[[32]byte]*desk
	guests int
}

type desk struct {
	bell    chan struct{} // closed by the next ring
	seats   int           // polls that wait
	seen    time.Time     // when the last poll ended
	offers  map[string]*offer
	pending []*offer // not taken yet, oldest first
}

// offer is a message that passes through.
type offer struct {
	id      string
	sender  wire.AgentID // "" where nobody knows it
	msg     wire.Message
	raw     []byte
	created time.Time
	replyBy time.Time
	taken   chan struct{} // closed when the agent has it
	answer  chan relayed  // holds one
}

// relayed is what the sender gets.
type relayed struct {
	status int
	body   []byte
}

func newDesks() *desks { return &desks{all: make(map[[32]byte]*desk)} }

// seat is a poll at a desk.
type seat struct {
	d     *desks
	owner [32]byte
	waits bool
	guest bool
}

// sit makes a poll known. Every poll must leave. One that finds no place does not wait: it gets what is stored.
func (d *desks) sit(owner [32]byte, waits, mailbox bool) *seat {
	s := &seat{d, owner, waits, !mailbox}
	if !waits {
		return s
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.guest && d.guests >= maxGuests {
		s.waits = false
		return s
	}
	k := d.all[owner]
	if k == nil {
		if len(d.all) >= maxDesks {
			d.forget(time.Now())
		}
		if len(d.all) >= maxDesks {
			s.waits = false
			return s
		}
		k = &desk{bell: make(chan struct{}), offers: make(map[string]*offer)}
		d.all[owner] = k
	}
	k.seats++
	if s.guest {
		d.guests++
	}
	return s
}

// forget needs mu. It drops desks at which nobody was for a while.
func (d *desks) forget(now time.Time) {
	for owner, k := range d.all {
		if k.seats == 0 && len(k.offers) == 0 && now.Sub(k.seen) > seenWithin {
			delete(d.all, owner)
		}
	}
}

// rung is closed by what comes next; nil, which never is, for a poll that does not wait.
func (s *seat) rung() <-chan struct{} {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if k := s.d.all[s.owner]; s.waits && k != nil {
		return k.bell
	}
	return nil
}

func (s *seat) leave() {
	if !s.waits {
		return
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	k := s.d.all[s.owner]
	k.seats--
	k.seen = time.Now()
	if s.guest {
		s.d.guests--
	}
}

// ring wakes the polls of a credential.
func (d *desks) ring(owner [32]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.all[owner]; k != nil {
		k.ring()
	}
}

func (k *desk) ring() {
	close(k.bell)
	k.bell = make(chan struct{})
}

// offer hands a message to a connected agent and says whether there is one.
func (d *desks) offer(owner [32]byte, o *offer, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.all[owner]
	if k == nil || k.seats == 0 && now.Sub(k.seen) > seenWithin || !k.room(o.sender) {
		return false
	}
	k.offers[o.id] = o
	k.pending = append(k.pending, o)
	k.ring()
	return true
}

// room says whether a further message of sender may pass through.
func (k *desk) room(sender wire.AgentID) bool {
	if len(k.offers) >= maxOffers {
		return false
	}
	n := 0
	for _, o := range k.offers {
		if o.sender == sender {
			n++
		}
	}
	return n < offerShare
}

// take gives a poll the messages that pass through and were not taken yet.
func (d *desks) take(owner [32]byte, box wire.AgentID, conv wire.ConversationID, limit int) []*offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.all[owner]
	if k == nil {
		return nil
	}
	var taken []*offer
	rest := k.pending[:0]
	for _, o := range k.pending {
		if len(taken) == limit || box != "" && o.msg.To != box || conv != "" && o.msg.Conversation != conv {
			rest = append(rest, o)
			continue
		}
		close(o.taken)
		taken = append(taken, o)
	}
	clear(k.pending[len(rest):])
	k.pending = rest
	return taken
}

// find returns a message that passes through, for its agent.
func (d *desks) find(owner [32]byte, id string) *offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.all[owner]; k != nil {
		return k.offers[id]
	}
	return nil
}

// withdraw ends the passing of a message: no reply is taken any more. It says whether none had come.
func (d *desks) withdraw(owner [32]byte, o *offer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.all[owner]
	if k == nil || k.offers[o.id] == nil {
		return false
	}
	delete(k.offers, o.id)
	for i, p := range k.pending {
		if p == o {
			k.pending = append(k.pending[:i], k.pending[i+1:]...)
			break
		}
	}
	return true
}

// reply hands an answer to the sender that waits, once. It says whether one does.
func (d *desks) reply(owner [32]byte, id string, a relayed) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.all[owner]
	if k == nil || k.offers[id] == nil {
		return false
	}
	k.offers[id].answer <- a // it holds one, and the offer goes with it
	delete(k.offers, id)
	return true
}

// connected counts the credentials whose agents wait now.
func (d *desks) connected() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, k := range d.all {
		if k.seats > 0 {
			n++
		}
	}
	return n
}
