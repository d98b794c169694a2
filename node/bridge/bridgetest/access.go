package bridgetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// repeat sends the same message twice. The node accepts it once and gives the same answer both times (AM-21).
func (s Suite) repeat(t *testing.T) {
	f := s.open(t)
	first, second := f.inject(s.Peers[0], 1), f.inject(s.Peers[0], 1)
	if first.err != nil || first.out.Duplicate || first.out.Status != http.StatusOK {
		t.Fatalf("first: %+v, %v, want it accepted", first.out, first.err)
	}
	if second.err != nil || !second.out.Duplicate || !bytes.Equal(second.out.Raw, first.out.Raw) {
		t.Errorf("second: duplicate %v, %v, same answer %v, want a duplicate with the same answer",
			second.out.Duplicate, second.err, bytes.Equal(second.out.Raw, first.out.Raw))
	}
}

// peers checks that the bridge distinguishes foreign peers and gives each the same address and pseudonym every time.
func (s Suite) peers(t *testing.T) {
	f := s.open(t)
	one, again, other := f.inject(s.Peers[0], 1), f.inject(s.Peers[0], 2), f.inject(s.Peers[1], 3)
	for i, c := range []call{one, again, other} {
		peer := s.Peers[i/2] // the first two calls are of one peer
		if c.in.Address != s.Address(peer).String() || c.in.Principal != s.Principal(peer) {
			t.Errorf("%s came in as %s, principal %s, want %s, %s",
				peer, c.in.Address, c.in.Principal, s.Address(peer), s.Principal(peer))
		}
	}
	if one.in.Peer != again.in.Peer || one.in.Peer == other.in.Peer {
		t.Errorf("pseudonyms of one peer are %s and %s, of another %s, want one for each peer", one.in.Peer, again.in.Peer, other.in.Peer)
	}
	if one.in.ConvID == again.in.ConvID {
		t.Errorf("two messages that open conversations share %s", one.in.ConvID)
	}
}

// strangerIsHeld: in approval mode all messages of an unknown principal wait for the owner, and the peer gets one notice
// that they wait. After an approval the node handles the messages in order and answers over the link (AM-31 to AM-34).
func (s Suite) strangerIsHeld(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	peer := s.Peers[0]
	calls := []call{f.inject(peer, 1), f.inject(peer, 2), f.inject(peer, 3)}
	want := make(map[wire.ConversationID]bool)
	for i, c := range calls {
		if c.err != nil || !c.out.Held || c.out.Status != http.StatusAccepted {
			t.Fatalf("message %d: %+v, %v, want it held", i+1, c.out, c.err)
		}
		if noticed := c.out.Reply != nil; noticed != (i == 0) {
			t.Errorf("message %d: the peer gets a notice that the owner decides: %v, want %v", i+1, noticed, i == 0)
		}
		want[c.in.ConvID] = true
	}
	ask := f.ask()
	if ask.Subject != s.Principal(peer) || ask.ID != calls[0].out.Ask || ask.Waiting != 2 {
		t.Errorf("the owner is asked about %s (%s) with %d behind, want %s (%s) with 2",
			ask.Subject, ask.ID, ask.Waiting, s.Principal(peer), calls[0].out.Ask)
	}
	if err := f.decide(ask, once(ask)); err != nil {
		t.Fatalf("approve: %v", err)
	}
	for range calls {
		d := f.nextDelivery()
		if d.Address != s.Address(peer).String() || !want[d.Message.Conversation] {
			t.Errorf("an answer goes to %s in %s, want %s in a conversation of its own", d.Address, d.Message.Conversation, s.Address(peer))
		}
		delete(want, d.Message.Conversation)
	}
	f.checkInbox(calls, "new", "answered") // "answered" if the bridge handles the intent
	if c := f.inject(peer, 4); c.err != nil || !c.out.Held || c.out.Reply == nil {
		t.Errorf("message after a one-time approval: held %v, notice %v, %v, want it held with a notice", c.out.Held, c.out.Reply != nil, c.err)
	}
}

// once returns the choice that releases only the messages shown. It is the plain approval of a sender without a proof.
func once(ask acl.Ask) acl.Choice {
	if ask.LetsIn(acl.Approve) {
		return acl.ApproveOnce
	}
	return acl.Approve
}

// checkInbox checks that the inbox contains exactly these messages, in order, each in one of the states.
func (f *fixture) checkInbox(calls []call, states ...string) {
	f.t.Helper()
	page, err := f.store.Records().List(f.t.Context(), "inbox", "", "", 100, time.Now())
	if err != nil || len(page.Records) != len(calls) {
		f.t.Fatalf("%d messages are in the inbox, %v, want %d", len(page.Records), err, len(calls))
	}
	for i, r := range page.Records {
		var item struct {
			MessageID wire.MessageID `json:"message_id"`
			State     string         `json:"state"`
		}
		if err := json.Unmarshal(r.Body, &item); err != nil || item.MessageID != calls[i].in.MessageID || !slices.Contains(states, item.State) {
			f.t.Errorf("message %d is %s, %s, %v, want %s, %v", i+1, item.MessageID, item.State, err, calls[i].in.MessageID, states)
		}
	}
}

// heldBacklogBound: if 16 messages of a stranger are held, the next one is refused with an error that allows a retry
// (AM-33).
func (s Suite) heldBacklogBound(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.Rates{})
	for n := 1; n <= 16; n++ {
		if c := f.inject(s.Peers[0], n); c.err != nil || !c.out.Held {
			t.Fatalf("message %d: held %v, %v, want it held", n, c.out.Held, c.err)
		}
	}
	if c := f.inject(s.Peers[0], 17); !errors.Is(c.err, wire.ErrHoldsFull) {
		t.Errorf("message 17: held %v, %v, want %v", c.out.Held, c.err, wire.ErrHoldsFull)
	}
	if err := f.decide(f.ask(), acl.Approve); err != nil {
		t.Fatalf("approve: %v", err)
	}
}

// ownerRejects: a rejected stranger gets a close in each conversation, and later messages are refused (AM-35).
func (s Suite) ownerRejects(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	peer := s.Peers[0]
	calls := []call{f.inject(peer, 1), f.inject(peer, 2)}
	if err := f.decide(f.ask(), acl.Reject); err != nil {
		t.Fatalf("reject: %v", err)
	}
	f.checkInbox(calls, "rejected")
	for range calls {
		if d := f.nextDelivery(); d.Message.Action() != wire.ActionClose {
			t.Errorf("the peer gets %s, want a close", d.Message.Payload.JSON())
		}
	}
	if c := f.inject(peer, 3); !errors.Is(c.err, wire.ErrOwnerRejected) {
		t.Errorf("message after the rejection: %v, want it rejected", c.err)
	}
}

// approvedForGood: an approval lets the principal in if a proof says who it is. Without a proof, messages are approved
// one by one, until the owner makes a rule about the principal (AM-97).
func (s Suite) approvedForGood(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	peer := s.Peers[0]
	proven := bridge.IsProof(f.inject(peer, 1).in.Verified)
	ask := f.ask()
	if offered := slices.Contains(ask.Choices, acl.ApproveConversation); offered != proven {
		t.Errorf("the owner may approve a conversation: %t, want %t", offered, proven)
	}
	if err := f.decide(ask, acl.Approve); err != nil {
		t.Fatalf("approve: %v", err)
	}
	if c := f.inject(peer, 2); c.err != nil || c.out.Held == proven {
		t.Errorf("message after the approval: held %v, %v, want %v", c.out.Held, c.err, !proven)
	}
	f.set(peer, acl.Approved)
	if c := f.inject(peer, 3); c.err != nil || c.out.Held {
		t.Errorf("message of an approved principal: held %v, %v, want it handled", c.out.Held, c.err)
	}
}

// set makes a rule of the owner about the principal of a peer.
func (f *fixture) set(peer string, s acl.Standing) {
	f.t.Helper()
	if err := acl.NewRules(f.store.Records(), acl.Policy{}).Set(f.t.Context(), f.Principal(peer), s, time.Now()); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) block(peer string) {
	f.t.Helper()
	f.set(peer, acl.Blocked)
}

// blockedPrincipal: a block applies to the principal in every mode (AM-25). A bridge that checks the block itself
// hands nothing to the node.
func (s Suite) blockedPrincipal(t *testing.T) {
	f := s.open(t)
	f.block(s.Peers[0])
	f.bridge.Inject(t.Context(), s.Peers[0], f.Message(1))
	for _, c := range f.callsAfter(0) {
		if !errors.Is(c.err, wire.ErrNotAllowed) {
			t.Errorf("message of a blocked principal: %v, want it refused", c.err)
		}
	}
	if s.Principal(s.Peers[0]) != s.Principal(s.Peers[1]) {
		if c := f.inject(s.Peers[1], 2); c.err != nil {
			t.Errorf("message of a principal that is not blocked: %v", c.err)
		}
	}
}

// blockedWhileHeld: a block wins over a later approval (AM-25, AM-34).
func (s Suite) blockedWhileHeld(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	f.inject(s.Peers[0], 1)
	ask := f.ask()
	f.block(s.Peers[0])
	if err := f.decide(ask, acl.Approve); !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("release of a blocked principal's message: %v, want it refused", err)
	}
}

// limits: limits apply to the principal; if that is a whole link, its peers share them (AM-41). A link with its own
// meter is exempt.
func (s Suite) limits(t *testing.T) {
	f := s.start(t, acl.Policy{Mode: acl.Open}, acl.Rates{NewConversations: 2, TokenContexts: 2})
	for n := 1; n <= 2; n++ {
		if c := f.inject(s.Peers[0], n); c.err != nil {
			t.Fatalf("message %d: %v", n, c.err)
		}
	}
	if c := f.inject(s.Peers[0], 3); errors.Is(c.err, wire.ErrRateLimited) != (c.in.Meter == nil) {
		t.Errorf("third conversation: %v; the link has a meter of its own: %v", c.err, c.in.Meter != nil)
	} else if c.in.Meter != nil {
		return
	}
	shared := s.Principal(s.Peers[0]) == s.Principal(s.Peers[1])
	if c := f.inject(s.Peers[1], 4); errors.Is(c.err, wire.ErrRateLimited) != shared {
		t.Errorf("another peer: %v; the two share a principal: %v", c.err, shared)
	}
}
