package bridgetest

import (
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// attach gives the links of the suite's peers a policy, as the process does when it starts the node.
func (f *fixture) attach(policy bridge.LinkPolicy) {
	f.t.Helper()
	var links []bridge.Link
	for _, peer := range f.Peers {
		address := f.Address(peer)
		links = append(links, bridge.Link{
			Name: address.Link, Kind: address.Kind, Policy: policy, Options: map[string]string{"peer": address.Peer},
		})
	}
	if _, err := f.node.Attach(f.LinkKind, links); err != nil {
		f.t.Fatal(err)
	}
}

// checkRefusal injects message n of a stranger and checks that the node refuses it and stores nothing of it.
func (f *fixture) checkRefusal(n int) {
	f.t.Helper()
	ctx, now := f.t.Context(), time.Now()
	c := f.inject(f.Peers[0], n)
	if !errors.Is(c.err, wire.ErrNotAllowed) {
		f.t.Errorf("message of a stranger: held %v, %v, want it refused", c.out.Held, c.err)
	}
	key := store.ConvKey{Peer: string(c.in.Peer), ID: string(c.in.ConvID)}
	if _, err := f.store.Steps().Conversation(ctx, key, now); !errors.Is(err, store.ErrNotFound) {
		f.t.Errorf("the conversation of a refused message: %v, want none", err)
	}
	if _, err := f.store.Steps().FindReplay(ctx, key.Peer, string(c.in.MessageID), now); !errors.Is(err, store.ErrNotFound) {
		f.t.Errorf("the record of a refused message: %v, want none", err)
	}
	for _, r := range c.in.Records {
		if _, err := f.store.Records().Get(ctx, r.Record.NS, r.Record.Key, now); !errors.Is(err, store.ErrNotFound) {
			f.t.Errorf("record %s %s of a refused message: %v, want none", r.Record.NS, r.Record.Key, err)
		}
	}
}

// linkAllowlist: policy.access of the link decides about a stranger behind it, even if the node is open.
func (s Suite) linkAllowlist(t *testing.T) {
	f := s.open(t)
	f.attach(bridge.LinkPolicy{Access: string(acl.Allowlist)})
	f.checkRefusal(1)
	asks, _, err := f.Asks().List(t.Context(), acl.AskFilter{}, "", 10, time.Now())
	if err != nil || len(asks) != 0 {
		t.Errorf("%d questions wait for the owner, %v, want none", len(asks), err)
	}
}

// linkDefault: without policy.access a stranger behind the link waits for the owner, even if the node is open. A node
// with an allowlist refuses the stranger and asks the owner nothing.
func (s Suite) linkDefault(t *testing.T) {
	f := s.open(t)
	f.attach(bridge.LinkPolicy{})
	if c := f.inject(s.Peers[0], 1); c.err != nil || !c.out.Held {
		t.Errorf("message of a stranger: held %v, %v, want it held", c.out.Held, c.err)
	}
	f = s.start(t, acl.Policy{Mode: acl.Allowlist}, acl.DefaultRates())
	f.attach(bridge.LinkPolicy{})
	f.checkRefusal(1)
}

// linkOpen: an explicit policy.access applies to its link, even if the node is stricter.
func (s Suite) linkOpen(t *testing.T) {
	f := s.start(t, acl.Policy{Mode: acl.Allowlist}, acl.DefaultRates())
	f.attach(bridge.LinkPolicy{Access: string(acl.Open)})
	if c := f.inject(s.Peers[0], 1); c.err != nil || c.out.Held {
		t.Errorf("message of a stranger: held %v, %v, want it handled", c.out.Held, c.err)
	}
}

// linkRelease: when the owner releases a held message, the node checks it again, under the link's policy of that moment
// (AM-34).
func (s Suite) linkRelease(t *testing.T) {
	f := s.open(t)
	f.attach(bridge.LinkPolicy{})
	if c := f.inject(s.Peers[0], 1); c.err != nil || !c.out.Held {
		t.Fatalf("message of a stranger: held %v, %v, want it held", c.out.Held, c.err)
	}
	ask := f.ask()
	f.attach(bridge.LinkPolicy{Access: string(acl.Allowlist)})
	if err := f.decide(ask, acl.Approve); !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("release after the link became an allowlist: %v, want it refused", err)
	}
	f.attach(bridge.LinkPolicy{})
	if err := f.decide(ask, acl.Approve); err != nil {
		t.Errorf("release under the policy that held it: %v", err)
	}
}
