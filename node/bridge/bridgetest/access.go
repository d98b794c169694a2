package bridgetest

import (
	"bytes"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// repeat hands the same message in twice: one acceptance, one answer (AM-21).
func (s Suite) repeat(t *testing.T) {
	f := s.open(t)
	first, second := f.inject(s.Peers[0], 1), f.inject(s.Peers[0], 1)
	if first.err != nil || first.out.Duplicate || first.out.Status != http.StatusOK {
		t.Fatalf("first: %+v, %v, want it accepted", first.out, first.err)
	}
	if second.err != nil || !second.out.Duplicate || !bytes.Equal(second.out.Raw, first.out.Raw) {
		t.Errorf("second: duplicate %v, %v, same answer: %v", second.out.Duplicate, second.err, bytes.Equal(second.out.Raw, first.out.Raw))
	}
}

// peers holds the bridge to telling foreign peers apart, and to calling each the same name every time.
func (s Suite) peers(t *testing.T) {
	f := s.open(t)
	one, again, other := f.inject(s.Peers[0], 1), f.inject(s.Peers[0], 2), f.inject(s.Peers[1], 3)
	for i, c := range []call{one, again, other} {
		peer := s.Peers[i/2]
		if c.in.Address != s.Address(peer).String() || c.in.Principal != s.Principal(peer) {
			t.Errorf("%s came in as %s, principal %s, want %s, %s",
				peer, c.in.Address, c.in.Principal, s.Address(peer), s.Principal(peer))
		}
	}
	if one.in.Peer != again.in.Peer || one.in.Peer == other.in.Peer {
		t.Errorf("pseudonyms of one peer are %s and %s, of another %s", one.in.Peer, again.in.Peer, other.in.Peer)
	}
	if one.in.ConvID == again.in.ConvID {
		t.Errorf("two messages that open conversations share %s", one.in.ConvID)
	}
}

// strangerIsHeld: in approval mode an unknown principal waits for the owner, once; approved, its message is handled
// and answered over the link (AM-31 to AM-34).
func (s Suite) strangerIsHeld(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	peer := s.Peers[0]
	c := f.inject(peer, 1)
	if c.err != nil || !c.out.Held || c.out.Status != http.StatusAccepted {
		t.Fatalf("first message: %+v, %v, want it held", c.out, c.err)
	}
	ask := f.ask()
	if ask.Subject != s.Principal(peer) || ask.ID != c.out.Ask {
		t.Errorf("the owner is asked about %s (%s), want %s (%s)", ask.Subject, ask.ID, s.Principal(peer), c.out.Ask)
	}
	if c := f.inject(peer, 2); !errors.Is(c.err, wire.ErrHoldsFull) {
		t.Errorf("second message: %v, want it refused", c.err)
	}
	if err := f.decide(ask, acl.Approve); err != nil {
		t.Fatalf("approve: %v", err)
	}
	if d := f.delivery(); d.Address != s.Address(peer).String() || d.Message.Conversation != c.in.ConvID {
		t.Errorf("the answer goes to %s in %s, want %s in %s", d.Address, d.Message.Conversation, s.Address(peer), c.in.ConvID)
	}
	if c := f.inject(peer, 3); c.err != nil || !c.out.Held {
		t.Errorf("message after an approval for once: held %v, %v, want held", c.out.Held, c.err)
	}
}

// ownerRejects: a rejected stranger is told, and refused from then on (AM-35).
func (s Suite) ownerRejects(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	peer := s.Peers[0]
	if c := f.inject(peer, 1); c.err != nil {
		t.Fatalf("first message: %v", c.err)
	}
	if err := f.decide(f.ask(), acl.Reject); err != nil {
		t.Fatalf("reject: %v", err)
	}
	if d := f.delivery(); d.Message.Action() != wire.ActionClose {
		t.Errorf("the peer is told %s, want a close", d.Message.Payload.JSON())
	}
	if c := f.inject(peer, 2); !errors.Is(c.err, wire.ErrOwnerRejected) {
		t.Errorf("message after the rejection: %v, want it rejected", c.err)
	}
}

// approvedForGood: the owner's lasting word counts for the principal.
func (s Suite) approvedForGood(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	peer := s.Peers[0]
	f.inject(peer, 1)
	if err := f.decide(f.ask(), acl.ApproveAlways); err != nil {
		t.Fatalf("approve: %v", err)
	}
	if c := f.inject(peer, 2); c.err != nil || c.out.Held {
		t.Errorf("message after the approval: held %v, %v, want it handled", c.out.Held, c.err)
	}
}

func (f *fixture) block(peer string) {
	f.t.Helper()
	rules := acl.NewRules(f.node.Store.Records(), acl.Policy{})
	if err := rules.Set(f.t.Context(), f.Principal(peer), acl.Blocked, time.Now()); err != nil {
		f.t.Fatal(err)
	}
}

// blocked: a block counts for the principal, in every mode (AM-25). A bridge whose protocol has it ask sooner hands
// nothing in.
func (s Suite) blocked(t *testing.T) {
	f := s.open(t)
	f.block(s.Peers[0])
	f.bridge.Inject(t.Context(), s.Peers[0], f.Message(1))
	for _, c := range f.since(0) {
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

// blockedWhileHeld: block beats an approval that comes later (AM-25, AM-34).
func (s Suite) blockedWhileHeld(t *testing.T) {
	f := s.start(t, acl.Policy{}, acl.DefaultRates())
	f.inject(s.Peers[0], 1)
	ask := f.ask()
	f.block(s.Peers[0])
	if err := f.decide(ask, acl.Approve); !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("release of a blocked principal's message: %v, want it refused", err)
	}
}

// limits: they count for the principal, whichever of its peers speaks (AM-41). A link with a meter is under that alone.
func (s Suite) limits(t *testing.T) {
	f := s.start(t, acl.Policy{Mode: acl.Open}, acl.Rates{NewConversations: 2})
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
