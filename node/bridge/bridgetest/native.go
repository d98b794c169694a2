package bridgetest

import (
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// conversation: a foreign peer's message starts a normal conversation under the peer's pseudonym, with a valid hash
// chain in the transcript (AM-36, AM-40).
func (s Suite) conversation(t *testing.T) {
	f := s.open(t)
	peer := s.Peers[0]
	c := f.inject(peer, 1)
	if c.err != nil {
		t.Fatalf("the message: %v", c.err)
	}
	key := store.ConvKey{Peer: string(c.in.Peer), ID: string(c.in.ConvID)}
	row, err := f.store.Steps().Conversation(t.Context(), key, time.Now())
	if err != nil {
		t.Fatalf("its conversation: %v", err)
	}
	conv, err := conversations.Decode(row)
	if err != nil || conv.State != conversations.Open || conv.Mine || conv.Intent != c.in.Intent || conv.Principal != s.Principal(peer) {
		t.Errorf("its conversation is %+v, %v", conv, err)
	}
	entries, err := f.store.Steps().Transcript(t.Context(), key, 0, 10)
	if err != nil || len(entries) == 0 || entries[0].Out || entries[0].MessageID != string(c.in.MessageID) || string(entries[0].Raw) == "" {
		t.Fatalf("its transcript has %d entries, %v; want the message first", len(entries), err)
	}
	if _, err := conversations.Verify([32]byte{}, 0, entries); err != nil {
		t.Error(err)
	}
}

// allowlistOnly: an allowlist admits nobody else, and the owner gets no question (AM-29).
func (s Suite) allowlistOnly(t *testing.T) {
	f := s.start(t, acl.Policy{Mode: acl.Allowlist}, acl.DefaultRates())
	if c := f.inject(s.Peers[0], 1); !errors.Is(c.err, wire.ErrNotAllowed) {
		t.Errorf("message of a peer that is not listed: %v, want it refused", c.err)
	}
	f = s.start(t, acl.Policy{Mode: acl.Allowlist, Allow: []string{s.Principal(s.Peers[0])}}, acl.DefaultRates())
	if c := f.inject(s.Peers[0], 1); c.err != nil || c.out.Held {
		t.Errorf("message of a listed peer: held %v, %v, want it handled", c.out.Held, c.err)
	}
}

// sensitive: if the owner wants to decide about the messages of an intent, they wait, whoever sent them (AM-31).
func (s Suite) sensitive(t *testing.T) {
	f := s.start(t, acl.Policy{Mode: acl.Open, Hold: []acl.HoldRule{{Intent: "*", Hold: acl.Always}}}, acl.DefaultRates())
	peer := s.Peers[0]
	c := f.inject(peer, 1)
	if c.err != nil || !c.out.Held {
		t.Fatalf("the message: %+v, %v, want it held", c.out, c.err)
	}
	ask := f.ask()
	if ask.ID != c.out.Ask || ask.Subject != s.Principal(peer) {
		t.Errorf("the owner is asked about %s (%s), want %s (%s)", ask.Subject, ask.ID, s.Principal(peer), c.out.Ask)
	}
	if err := f.decide(ask, acl.Approve); err != nil {
		t.Errorf("approve: %v", err)
	}
}

// flood: however many messages one peer sends, the node accepts no more than the limits allow, and still accepts the
// messages of other peers (AM-41).
func (s Suite) flood(t *testing.T) {
	f := s.start(t, acl.Policy{Mode: acl.Open}, acl.Rates{NewConversations: 5, TokenContexts: 5, Conversation: 5, Total: 50})
	for n := range 100 {
		f.bridge.Inject(t.Context(), s.Peers[0], s.Message(n+1))
	}
	accepted := 0
	for _, c := range f.callsAfter(0) {
		if c.err == nil {
			accepted++
		}
	}
	if metered := f.callsAfter(0)[0].in.Meter != nil; accepted == 0 || accepted > 5 && !metered {
		t.Errorf("%d messages of a flood were accepted, want 1 to 5; the link has a meter of its own: %v", accepted, metered)
	}
	if s.Principal(s.Peers[0]) == s.Principal(s.Peers[1]) {
		return // they share the limits
	}
	if c := f.inject(s.Peers[1], 101); c.err != nil {
		t.Errorf("another peer meanwhile: %v", c.err)
	}
}
