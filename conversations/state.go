package conversations

import (
	"cmp"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// State is the state of a conversation (AM-38).
type State string

const (
	Open      State = "open"
	Completed State = "completed"
	Failed    State = "failed"
	Expired   State = "expired" // never stored: computed by [Conversation.StateAt]
)

// Conversation is the state of one conversation. If only Key is set, the conversation has not begun.
type Conversation struct {
	Key       store.ConvKey `json:"-"`                 // stored beside the body
	Entries   uint64        `json:"-"`                 // number of entries in the transcript when loaded
	Principal string        `json:"principal"`         // the name under which limits and rules apply to the peer
	Address   string        `json:"address,omitempty"` // of a foreign peer, one on another network
	State     State         `json:"state"`             // as stored; call StateAt for the current state
	Bytes     int64         `json:"bytes,omitempty"`   // size of the messages in the transcript
	Mine      bool          `json:"mine,omitempty"`    // our side sent the first message
	Intent    wire.Intent   `json:"intent"`            // of the first message, and not of an answer (AM-89)
	Idle      time.Duration `json:"idle,omitempty"`    // silence after which it expires, if not the default
	Opened    time.Time     `json:"opened"`
	Last      time.Time     `json:"last"` // start of the idle time: the last message, or the end of a wait for an owner

	Deadline time.Time `json:"deadline,omitzero"` // time at which it expires in any case
	Purge    time.Time `json:"purge,omitzero"`    // time by which everything in it must be deleted, even within the retention

	// Held has the time until which each held message waits for our owner. PeerHeld is the time until which a message of
	// ours waits for the peer's owner (AM-40).
	Held     []time.Time `json:"held,omitempty"`
	PeerHeld time.Time   `json:"peer_held,omitzero"`

	// Unreleased has the messages of the peer that our owner has not released; see [Conversation.IsReleased].
	Unreleased []wire.MessageID `json:"unreleased,omitempty"`
	// Unjudged has the messages of the peer that the owner's guard has not let through, and the owner has not either.
	Unjudged []wire.MessageID `json:"unjudged,omitempty"`

	Rejected   bool `json:"rejected,omitempty"`    // by our owner (AM-35)
	WroteFirst bool `json:"wrote_first,omitempty"` // our owner wrote in it without being asked (AM-30)
	// Wrote has the intents of those messages, with which the peer may answer even if our card lacks them.
	Wrote []wire.Intent `json:"wrote,omitempty"`

	// Heard is the newest message of the peer that is more than the state of another one, and HeardIntent its intent.
	Heard       wire.MessageID `json:"heard,omitempty"`
	HeardIntent wire.Intent    `json:"heard_intent,omitempty"`

	// Turns is the number of turns that the owner's agent took since the owner's last act here, and Handed whether one of
	// them was the run of a hook. Until TurnsFree, the agent may take any number (AM-92, AM-93).
	Turns     int       `json:"turns,omitempty"`
	Handed    bool      `json:"handed,omitempty"`
	TurnsFree time.Time `json:"turns_free,omitzero"`

	// LastSent is the number of the newest outbox entry. It makes the ids of entries sort in the order of the messages.
	LastSent int64 `json:"last_sent,omitempty"`

	// Admitted has the intents that the peer may use here without a question to our owner (AM-34). "" in it means that
	// the owner answered the peer here: no message of it waits for its sender (AM-97).
	Admitted []wire.Intent `json:"let,omitempty"`

	// Schedule and Negotiate are what stands for these intents. No other intent has proposals.
	Schedule  Deal `json:"schedule,omitzero"`
	Negotiate Deal `json:"negotiate,omitzero"`

	// Sealed reports whether a sealed message was received or sent; from then on, we seal our messages (AM-85).
	// PeerRecipient is the age recipient that the newest sealed message of the peer named.
	Sealed        bool   `json:"sealed,omitempty"`
	PeerRecipient string `json:"peer_recipient,omitempty"`
}

// Side is one of the two sides of a conversation.
type Side string

const (
	Ours   Side = "ours"
	Theirs Side = "theirs"
)

// Kind is the kind of an [Event].
type Kind uint8

const (
	Received       Kind = iota + 1 // a message from the peer
	Sent                           // a message that our owner sent unasked
	Replied                        // our answer to a message from the peer
	ClosedByPeer                   // the peer sent a close
	ClosedByUs                     // we sent a close
	HoldOpened                     // until Event.Until, our owner holds the peer's message Event.ID, or one of ours if Event.ID is empty
	HoldEnded                      // the hold until Event.Until ended by a decision or a withdrawal; Event.ID and Payload: the released message
	HeldByPeer                     // the peer's owner holds our message Event.ID, at most until Event.Until
	OwnerRejected                  // our owner rejected a held message
	OwnerAdmitted                  // our owner lets the peer use Event.Intent here without further questions, or answered it if Event.Intent is empty
	DeliveryFailed                 // a message of ours cannot be delivered (AM-47)
	Delivered                      // the peer has our message Event.ID, under the id Event.Answers
	AcceptCounts                   // the recipient of the accept Event.ID answered it without refusing it
	TurnTaken                      // the owner's agent gets the message Event.ID to answer, or wrote by itself if Event.ID is empty
	OwnerActed                     // the owner wrote or decided here; until Event.Until, the agent may take any number of turns
	Judged                         // the guard, or the owner after it, let the peer's message Event.ID through
	Afterwards                     // a message from the peer after the end of the conversation (AM-96)
)

// Event is something that happened to a conversation. Principal, Address, Idle and Deadline are used only if the event
// opens the conversation.
type Event struct {
	Kind      Kind
	At        time.Time
	Principal string        // of the peer
	Address   string        // of a foreign peer
	Intent    wire.Intent   // of the message; empty means the intent of the first message
	Payload   wire.Value    // of the message
	Until     time.Time     // of holds
	Idle      time.Duration // 0 means the default
	Sealed    bool          // the message was sealed
	Recipient string        // the age recipient to which the sender wants answers to be sealed
	Deadline  time.Time     // zero means none
	Purge     time.Time     // when the message must be deleted; zero means with the conversation

	ID      wire.MessageID // of the message
	Answers wire.MessageID // the message that it answers, if known
	Written time.Time      // when the peer wrote the message, or its answer for AcceptCounts, by its clock; for Delivered, when the peer got ours
	Direct  bool           // the message is the reply on a connection: the peer has ours, and left its own before what we got later

	Decision        // of a message of ours that our owner or agent wrote
	Name     string // name on the peer's card; untrusted text
	Waits    bool   // the peer's message waits for our owner: it makes and accepts no proposal yet, and cancels no event
	// Cancels ends the agreement, because our owner released a message of the peer that cancels it.
	Cancels bool
	// Arrived is when the released message came, if its terms take effect only now; see Waits.
	Arrived time.Time
	// Withheld hides the peer's message from the owner's agent. It is set if the message needs our owner's approval,
	// but the owner is not asked, because the message withdraws held messages or closes the conversation.
	Withheld bool
	// Unjudged hides the peer's message from the owner's agent until an event of the kind Judged.
	Unjudged bool
}

// StateAt returns the state at now. An open conversation expires after a silence of c.Idle, or of idle if c.Idle is 0,
// not counting the time in which a message waits for an owner (AM-38, AM-40).
func (c Conversation) StateAt(now time.Time, idle time.Duration) State {
	if c.State == Open && !now.Before(c.Expiry(idle)) {
		return Expired
	}
	return c.State
}

// Expiry returns the time at which an open conversation expires without further messages.
func (c Conversation) Expiry(idle time.Duration) time.Time {
	idle = cmp.Or(c.Idle, idle)
	start := later(c.Last, c.PeerHeld) // of the idle time
	for _, end := range c.Held {
		start = later(start, end)
	}
	return Sooner(start.Add(idle), Sooner(c.Deadline, c.Purge))
}

// Admits reports whether our owner lets the peer write here with this intent, whoever the peer is.
func (c Conversation) Admits(intent wire.Intent) bool {
	return slices.Contains(c.Admitted, intent) || slices.Contains(c.Admitted, "")
}

// Holds returns the number of messages that wait for our owner at now.
func (c Conversation) Holds(now time.Time) int {
	n := 0
	for _, end := range c.Held {
		if now.Before(end) {
			n++
		}
	}
	return n
}

// maxHidden bounds Conversation.Unreleased and Conversation.Unjudged. A full list stays full, because it may lack
// messages.
const maxHidden = 100

// IsReleased reports whether the owner's agent may see a message of the peer: it did not wait for our owner and our
// guard, or they let it through. Once a list of hidden messages is full, the agent sees no message of the peer.
func (c Conversation) IsReleased(id wire.MessageID) bool {
	return !isHidden(c.Unreleased, id) && !isHidden(c.Unjudged, id)
}

func isHidden(hidden []wire.MessageID, id wire.MessageID) bool {
	return len(hidden) >= maxHidden || slices.Contains(hidden, id)
}

// withhold adds a message to a list of hidden messages, unless the list is full.
func withhold(hidden []wire.MessageID, id wire.MessageID) []wire.MessageID {
	if len(hidden) >= maxHidden {
		return hidden
	}
	return append(slices.Clip(hidden), id)
}

// show removes a message from a list of hidden messages, unless the list is full.
func show(hidden []wire.MessageID, id wire.MessageID) []wire.MessageID {
	if len(hidden) >= maxHidden {
		return hidden
	}
	return slices.DeleteFunc(slices.Clone(hidden), func(other wire.MessageID) bool { return other == id })
}

// Next returns the conversation after an event. It refuses with wire.ErrOwnerRejected, wire.ErrConversationClosed or
// wire.ErrCloseStatus, in this order if several apply. It also refuses an accept of ours that does not answer the
// standing proposal, or that selects none of several times. A refused event changes nothing. An event without a message
// (a hold, a failed delivery) is refused only before the conversation begins. After the end it has no effect, except
// that an accept may still count if the conversation was closed as completed (also one on the connection of our message), and
// that the peer may take an agreement back.
func (c Conversation) Next(e Event, idle time.Duration) (Conversation, error) {
	e.At = e.At.UTC()
	if c.State == "" {
		return c.begin(e)
	}
	isOpen := c.StateAt(e.At, idle) == Open
	if isOpen {
		c = c.settle(e.At)
	}
	switch e.Kind {
	case Received, Sent, Replied, ClosedByPeer, ClosedByUs:
		if c.Rejected && (e.Kind == Received || e.Kind == ClosedByPeer) {
			return c, wire.ErrOwnerRejected
		}
		if !isOpen && !c.isOvertaken(e) {
			return c, wire.ErrConversationClosed
		}
		return c.applyMessage(e)
	}
	switch {
	case e.Kind == Judged: // a conversation may end during the judgment
		c.Unjudged = show(c.Unjudged, e.ID)
	case e.Kind == Afterwards:
		if d := c.deal(e.Intent); d != nil && d.IsTakenBackBy(e) {
			*d = d.cancel(Theirs, e.At)
		}
	case isOpen || e.Kind == AcceptCounts && c.State == Completed: // a close may overtake the answer to an accept
		c = c.applyOther(e)
	}
	return c, nil
}

// isOvertaken reports whether the message is the peer's accept on the connection of ours, and the close that follows the
// agreement came first on another connection.
func (c Conversation) isOvertaken(e Event) bool {
	return c.State == Completed && e.Kind == Received && e.Direct && e.Payload.GetStr("action") == "accept"
}

// begin opens a conversation. A close does not open one (AM-39).
func (c Conversation) begin(e Event) (Conversation, error) {
	if e.Kind != Received && e.Kind != Sent {
		return c, wire.ErrConversationClosed
	}
	c.State, c.Principal, c.Mine = Open, e.Principal, e.Kind == Sent
	c.Intent, c.Opened, c.Address, c.Idle, c.Deadline = e.Intent, e.At, e.Address, e.Idle, e.Deadline.UTC()
	return c.applyMessage(e)
}

// applyMessage applies an event with a message to an open conversation.
func (c Conversation) applyMessage(e Event) (Conversation, error) {
	if e.Withheld {
		c.Unreleased = withhold(c.Unreleased, e.ID)
	}
	if e.Unjudged {
		c.Unjudged = withhold(c.Unjudged, e.ID)
	}
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
			c = c.eachDeal(func(d Deal) Deal { return d.cancel(by, e.At) })
		}
		return c.touch(e.At).end(state), nil
	}
	next, err := c.updateTerms(e)
	if err != nil {
		return c, err
	}
	c = next
	c.Sealed = c.Sealed || e.Sealed
	c.Purge = Sooner(c.Purge, e.Purge.UTC())
	switch e.Kind {
	case Received:
		if e.Recipient != "" {
			c.PeerRecipient = e.Recipient
		}
		if !wire.IsReceipt(cmp.Or(e.Intent, c.Intent), e.Payload) {
			c.Heard, c.HeardIntent = e.ID, cmp.Or(e.Intent, c.Intent)
		}
		c.PeerHeld = time.Time{} // the peer's next message ends its hold
	case Sent:
		c.WroteFirst = true
		if intent := cmp.Or(e.Intent, c.Intent); !slices.Contains(c.Wrote, intent) {
			c.Wrote = append(slices.Clip(c.Wrote), intent)
		}
	}
	return c.touch(e.At), nil
}

// eachDeal changes what stands for each intent.
func (c Conversation) eachDeal(change func(Deal) Deal) Conversation {
	c.Schedule, c.Negotiate = change(c.Schedule), change(c.Negotiate)
	return c
}

// applyOther applies an event without a message. If the conversation is open, call settle first, so that c does not
// share Held with another copy.
func (c Conversation) applyOther(e Event) Conversation {
	switch e.Kind {
	case HoldOpened:
		c.Held = append(c.Held, e.Until.UTC())
		if e.ID != "" {
			c.Unreleased = withhold(c.Unreleased, e.ID)
		}
	case HoldEnded:
		c = c.touch(e.At)
		if e.Cancels {
			c.Schedule = c.Schedule.cancel(Theirs, e.At)
		}
		if !e.Arrived.IsZero() {
			c = c.applyReleased(e)
		}
		i := slices.IndexFunc(c.Held, e.Until.Equal)
		if i < 0 && e.At.Before(e.Until) { // this hold was joined to another one, which ends later
			i = slices.IndexFunc(c.Held, e.Until.Before)
		}
		if i >= 0 {
			c.Held = slices.Delete(c.Held, i, i+1)
		}
		c.Unreleased = show(c.Unreleased, e.ID)
	case HeldByPeer:
		c.PeerHeld = e.Until.UTC()
		c = c.eachDeal(func(d Deal) Deal { return d.updateAccept(e.ID, func(a *Acceptance) { a.Held = true }) })
	case OwnerRejected:
		c = c.eachDeal(func(d Deal) Deal { return d.cancel(Ours, e.At) }).touch(e.At).end(Failed)
		c.Rejected = true
	case OwnerAdmitted:
		if !slices.Contains(c.Admitted, e.Intent) {
			c.Admitted = append(slices.Clone(c.Admitted), e.Intent)
		}
	case DeliveryFailed:
		c = c.end(Failed)
	case Delivered:
		c = c.eachDeal(func(d Deal) Deal { return d.markDelivered(e) })
	case AcceptCounts:
		e.Turns = c.Turns
		c = c.eachDeal(func(d Deal) Deal { return d.conclude(e) })
	case TurnTaken:
		c.Turns, c.Handed = c.Turns+1, c.Handed || e.ID != ""
	case OwnerActed:
		c.Turns, c.Handed, c.TurnsFree = 0, false, later(c.TurnsFree, e.Until.UTC())
	}
	return c
}

// settle removes expired holds. The idle time starts again at the end of each.
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

// touch restarts the idle time. It never moves the start back, because events may arrive slightly out of order.
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

// Sooner returns the earlier of two times. The zero time means never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
