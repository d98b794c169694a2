package conversations

import (
	"cmp"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// State is where a conversation stands (AM-38).
type State string

const (
	Open      State = "open"
	Completed State = "completed"
	Failed    State = "failed"
	Expired   State = "expired" // never stored: judged by [Conversation.At]
)

// Conversation is the state of one conversation. The zero value, but for its Key, is one that has not begun.
type Conversation struct {
	Key       store.ConvKey `json:"-"`                 // kept beside the body
	Entries   uint64        `json:"-"`                 // in the transcript, when it was loaded
	Principal string        `json:"principal"`         // of the peer
	Address   string        `json:"address,omitempty"` // of a foreign peer
	State     State         `json:"state"`             // as stored; ask At
	Bytes     int64         `json:"bytes,omitempty"`   // of the messages in the transcript
	Mine      bool          `json:"mine,omitempty"`
	Intent    wire.Intent   `json:"intent"`         // of the first message
	Idle      time.Duration `json:"idle,omitempty"` // how long it may be silent, where that is not what all others may
	Opened    time.Time     `json:"opened"`
	Last      time.Time     `json:"last"` // when the idle clock started: the last message, or the end of a hold

	Deadline time.Time `json:"deadline,omitzero"` // it expires then at the latest, whatever is said
	Purge    time.Time `json:"purge,omitzero"`    // nothing of it is kept beyond, whatever the retention

	// Held are the ends of the holds that wait for our owner; PeerHeld is the end of the peer's (AM-40).
	Held     []time.Time `json:"held,omitempty"`
	PeerHeld time.Time   `json:"peer_held,omitzero"`

	Rejected   bool `json:"rejected,omitempty"`    // by our owner (AM-35)
	WroteFirst bool `json:"wrote_first,omitempty"` // our owner wrote in it, not only answered (AM-30)

	// Let are the intents that our owner lets the peer use in it without a question (AM-34).
	Let []wire.Intent `json:"let,omitempty"`

	// The proposal, its acceptance and the agreement (AM-88). Values behind these pointers are never changed.
	Proposal  *Proposal      `json:"offer,omitempty"`     // the one that stands
	Replaced  *Proposal      `json:"replaced,omitempty"`  // of ours, which one of theirs ended
	Accept    *Acceptance    `json:"accept,omitempty"`    // of Proposal; it does not count yet
	Overtaken *Acceptance    `json:"overtaken,omitempty"` // of ours, which a later proposal of ours overtook before its answer
	Unclear   wire.MessageID `json:"unclear,omitempty"`   // the newest message, if it is an ambiguous accept
	Agreement *Agreement     `json:"agreement,omitempty"` // the newest one

	// Sealed: a message in it was sealed, so what we say in it is (AM-85). PeerRecipient is the age recipient that the
	// peer named in the newest message that it sealed.
	Sealed        bool   `json:"sealed,omitempty"`
	PeerRecipient string `json:"peer_recipient,omitempty"`
}

// Side is one of the two in a conversation.
type Side string

const (
	Ours   Side = "ours"
	Theirs Side = "theirs"
)

// Kind is what happened to a conversation.
type Kind uint8

const (
	Received       Kind = iota + 1 // a message of the peer
	Sent                           // a message of our owner's own accord
	Replied                        // our answer to a message of the peer
	ClosedByPeer                   // the peer sent a close
	ClosedByUs                     // we sent a close
	HoldOpened                     // a message waits for our owner until Event.Until
	HoldEnded                      // decided or withdrawn: the hold until Event.Until, or all of them where that is zero
	HeldByPeer                     // the peer answered that the message Event.ID of ours waits for its owner, at most until Event.Until
	OwnerRejected                  // our owner rejected what was held
	OwnerLet                       // our owner lets the peer go on in it with Event.Intent, without a question
	DeliveryFailed                 // a message of ours can not be delivered (AM-47)
	Delivered                      // the peer has the message Event.ID of ours, under the id Event.Answers
	AcceptCounts                   // the side that got the accept Event.ID has answered it, and not with a refusal
)

// Event is one thing that happened.
type Event struct {
	Kind      Kind
	At        time.Time
	Principal string        // of the peer; read from the event that opens the conversation
	Address   string        // of a foreign peer; likewise
	Intent    wire.Intent   // of the message; empty means that of the first one
	Payload   wire.Value    // of the message
	Until     time.Time     // of holds
	Idle      time.Duration // of the conversation that the event opens; 0 is that of all
	Sealed    bool          // the message was
	Recipient string        // what its sender wants answers sealed to
	Deadline  time.Time     // of the conversation that the event opens; zero is none
	Purge     time.Time     // when the message must be gone; zero: when the conversation goes

	ID      wire.MessageID // of the message
	Answers wire.MessageID // the message that it answers, as far as it is known
	Written time.Time      // of a message of the peer, by its own clock
	Direct  bool           // a message of ours that is the reply on the peer's connection: the peer has it

	Name  string // of the peer, as its card has it; untrusted text
	Waits bool   // a message of the peer that waits for our owner: what it asks for is not done yet
}

// At judges a conversation that may have expired (AM-38): after idle without a message, not counting the time in
// which an owner was asked (AM-40).
func (c Conversation) At(now time.Time, idle time.Duration) State {
	if c.State == Open && !now.Before(c.ends(idle)) {
		return Expired
	}
	return c.State
}

// ends is when an open conversation expires if nothing happens.
func (c Conversation) ends(idle time.Duration) time.Time {
	idle = cmp.Or(c.Idle, idle)
	clock := later(c.Last, c.PeerHeld)
	for _, end := range c.Held {
		clock = later(clock, end)
	}
	return Sooner(clock.Add(idle), Sooner(c.Deadline, c.Purge))
}

// Holds is the number of messages that wait for our owner.
func (c Conversation) Holds(now time.Time) int {
	n := 0
	for _, end := range c.Held {
		if now.Before(end) {
			n++
		}
	}
	return n
}

// Next returns the conversation after an event. It refuses with wire.ErrConversationClosed, wire.ErrOwnerRejected or
// wire.ErrCloseStatus, in this order if several apply (AM-24), and it refuses an accept of ours that
// answers no standing proposal or selects none of several times; then nothing has changed. Events that no peer can
// see (holds, a failed delivery) are never refused; on a conversation that has ended they change nothing.
func (c Conversation) Next(e Event, idle time.Duration) (Conversation, error) {
	e.At = e.At.UTC()
	if c.State == "" {
		return c.begin(e)
	}
	live := c.At(e.At, idle) == Open
	if live {
		c = c.settle(e.At)
	}
	switch e.Kind {
	case Received, Sent, Replied, ClosedByPeer, ClosedByUs:
		if c.Rejected && (e.Kind == Received || e.Kind == ClosedByPeer) {
			return c, wire.ErrOwnerRejected
		}
		if !live {
			return c, wire.ErrConversationClosed
		}
		return c.message(e)
	}
	if live || e.Kind == AcceptCounts && c.State == Completed { // a close may overtake the answer to an accept
		c = c.bookkeeping(e)
	}
	return c, nil
}

// begin opens a conversation by its first message. A close opens none (AM-39).
func (c Conversation) begin(e Event) (Conversation, error) {
	if e.Kind != Received && e.Kind != Sent {
		return c, wire.ErrConversationClosed
	}
	c.State, c.Principal, c.Mine = Open, e.Principal, e.Kind == Sent
	c.Intent, c.Opened, c.Address, c.Idle, c.Deadline = e.Intent, e.At, e.Address, e.Idle, e.Deadline.UTC()
	return c.message(e)
}

// message is an event that carries a message, in an open conversation.
func (c Conversation) message(e Event) (Conversation, error) {
	if e.Kind == ClosedByPeer || e.Kind == ClosedByUs {
		state := State(e.Payload.GetStr("status"))
		if state != Completed && state != Failed {
			return c, wire.ErrCloseStatus
		}
		if state == Failed {
			by := Ours
			if e.Kind == ClosedByPeer {
				by = Theirs
			}
			c = c.cancel(by, e.At)
		}
		return c.touch(e.At).end(state), nil
	}
	agreed, err := c.agree(e)
	if err != nil {
		return c, err
	}
	c = agreed
	c.Sealed = c.Sealed || e.Sealed
	c.Purge = Sooner(c.Purge, e.Purge.UTC())
	switch e.Kind {
	case Received:
		if e.Recipient != "" {
			c.PeerRecipient = e.Recipient
		}
		c.PeerHeld = time.Time{} // its next message ends the peer's hold
	case Sent:
		c.WroteFirst = true
	}
	return c.touch(e.At), nil
}

// bookkeeping is an event without a message, in an open conversation whose holds are settled and its own.
func (c Conversation) bookkeeping(e Event) Conversation {
	switch e.Kind {
	case HoldOpened:
		c.Held = append(c.Held, e.Until.UTC())
	case HoldEnded:
		c = c.touch(e.At)
		if e.Until.IsZero() {
			c.Held = nil
		} else if i := slices.IndexFunc(c.Held, e.Until.Equal); i >= 0 {
			c.Held = slices.Delete(c.Held, i, i+1)
		}
	case HeldByPeer:
		c.PeerHeld = e.Until.UTC()
		if c.Accept != nil && c.Accept.By == Ours && c.Accept.Message == e.ID {
			held := *c.Accept
			held.Held = true
			c.Accept = &held
		}
	case OwnerRejected:
		c = c.cancel(Ours, e.At).touch(e.At).end(Failed)
		c.Rejected = true
	case OwnerLet:
		if !slices.Contains(c.Let, e.Intent) {
			c.Let = append(slices.Clone(c.Let), e.Intent)
		}
	case DeliveryFailed:
		c = c.end(Failed)
	case Delivered:
		c = c.deliver(e)
	case AcceptCounts:
		c = c.conclude(e)
	}
	return c
}

// settle forgets the holds that expired by now, which started the clock anew when they did.
func (c Conversation) settle(now time.Time) Conversation {
	if c.PeerHeld.Before(now) {
		c.Last, c.PeerHeld = later(c.Last, c.PeerHeld), time.Time{}
	}
	var waiting []time.Time
	for _, end := range c.Held {
		if now.Before(end) {
			waiting = append(waiting, end)
		} else {
			c.Last = later(c.Last, end)
		}
	}
	c.Held = waiting
	return c
}

// touch starts the idle clock anew. Events may come out of order by a little; the clock never goes back.
func (c Conversation) touch(at time.Time) Conversation {
	c.Last = later(c.Last, at)
	return c
}

func (c Conversation) end(s State) Conversation {
	c.State, c.Held, c.PeerHeld = s, nil, time.Time{}
	return c
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Sooner returns the earlier of two times, of which the zero one is never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
