package client

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestLookupBudget checks that strangers spend the node's budget and no more, and that the budget does not bind the
// owner (AM-43).
func TestLookupBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		var limited int
		for i := range 200 {
			_, err := c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_stranger%d", i)), Origin{}, time.Now())
			if e, ok := errors.AsType[*wire.Error](err); ok && errors.Is(err, wire.ErrRateLimited) {
				limited++
				if e.RetryAfter != time.Second {
					t.Fatalf("RetryAfter = %v, want 1s", e.RetryAfter)
				}
			}
		}
		if l.count() != 60 || limited != 140 { // the last places are for messages with a known source
			t.Errorf("%d fetches, %d refused; want 60, 140", l.count(), limited)
		}
		if _, err := c.Find(t.Context(), sarah, time.Now()); err != nil {
			t.Errorf("Find() for the owner = %v", err)
		}
		time.Sleep(time.Minute)
		if _, err := c.Lookup(t.Context(), "am_late", Origin{}, time.Now()); !errors.Is(err, wire.ErrUnknownSender) {
			t.Errorf("Lookup() a minute later = %v, want ErrUnknownSender", err)
		}
		time.Sleep(maxFresh)
		for i := range 200 {
			_, _ = c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_another%d", i)), Origin{}, time.Now())
		}
		if _, err := c.Lookup(t.Context(), sarah, Origin{}, time.Now()); err != nil {
			t.Errorf("Lookup() of an agent that the owner wrote to = %v, although only strangers spent the budget", err)
		}
		if _, err := c.Lookup(t.Context(), "am_stranger0", Origin{}, time.Now()); !errors.Is(err, wire.ErrRateLimited) {
			t.Errorf("Lookup() of a stranger = %v, want ErrRateLimited", err)
		}
		if c.cache.Len() > 1 || len(c.inFlight) != 0 {
			t.Errorf("%d cached, %d in flight", c.cache.Len(), len(c.inFlight))
		}
	})
}

// from returns the origin of a message from an address.
func from(addr string) Origin { return Origin{Sources: rate.AddrSources(netip.MustParseAddr(addr))} }

// TestLookupShares checks that an address that invents senders leaves a fifth of the look-ups to others, and that a source
// that drew nothing is always served.
func TestLookupShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		flood := from("2001:db8::1")
		for i := range 100 {
			_, _ = c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_stranger%d", i)), flood, time.Now())
		}
		if l.count() != 48 {
			t.Errorf("one address caused %d fetches, want 48", l.count())
		}
		var refused *wire.Error
		if _, err := c.Lookup(t.Context(), "am_another", flood, time.Now()); !errors.As(err, &refused) || refused.RetryAfter != time.Second {
			t.Errorf("Lookup() beyond its share = %v, want a wait of 1 s", err)
		}
		if _, err := c.Lookup(t.Context(), sarah, from("192.0.2.1"), time.Now()); err != nil {
			t.Errorf("Lookup() for another address = %v", err)
		}
		if _, err := c.Lookup(t.Context(), sarah, flood, time.Now()); err != nil {
			t.Errorf("Lookup() of a card that is cached = %v", err)
		}
		for i := range 100 {
			_, _ = c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_many%d", i)), from(fmt.Sprintf("192.%d.0.1", i)), time.Now())
		}
		if l.count() != 84 { // 24 beyond 60 are for newcomers
			t.Errorf("many addresses caused %d fetches, want 84 in all", l.count())
		}
	})
}

// TestLookupsInsideAreFree checks that answers of a directory in this process cost nothing, and that another directory
// is asked, and paid for, only if that one does not list the agent.
func TestLookupsInsideAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, remote := newListing(), newListing()
		inside := own.at("https://own.example/v1")
		inside.inside = true
		c := NewCards(CardsConfig{Directories: []*Directory{inside, remote.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		for i := range 100 {
			_, _ = c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_made_up%d", i)), from(fmt.Sprintf("192.%d.0.1", i)), time.Now())
		}
		if remote.count() != 84 {
			t.Fatalf("the other directory was asked %d times, want 84", remote.count())
		}
		for i := range 100 {
			id := wire.AgentID(fmt.Sprintf("am_ours%d", i))
			own.put(id, key(1))
			if _, err := c.Lookup(t.Context(), id, from("192.0.2.1"), time.Now()); err != nil {
				t.Fatalf("Lookup() of an agent in our own directory = %v", err)
			}
		}
		if remote.count() != 84 {
			t.Errorf("the other directory was asked %d times, want 84", remote.count())
		}
	})
}

// TestLookupsOfKnownAgents checks that agents that the owner knows are looked up whatever strangers have spent, but at
// most once a minute each, because anybody may claim to be one of them.
func TestLookupsOfKnownAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.control = "no-store"
		l.put(sarah, key(1))
		v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
		for i := range 100 {
			_, _ = v.Cards.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_made_up%d", i)), from(fmt.Sprintf("192.0.%d.1", i)), time.Now())
		}
		spent, friend := l.count(), from("192.0.2.1")
		friend.Known = true
		for range 50 {
			if _, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(1), time.Now()), friend, time.Now()); err != nil {
				t.Fatalf("Authenticate() of a known agent = %v", err)
			}
			_, _ = v.Authenticate(t.Context(), forgeMessage(t, sarah, time.Now()), friend, time.Now())
			time.Sleep(time.Second)
		}
		if n := l.count() - spent; n != 1 {
			t.Errorf("%d fetches of a known agent within a minute, want 1", n)
		}
		time.Sleep(15 * time.Second)
		l.put(sarah, key(2)) // rotated; the pinned key does not vouch for the new key, so only the fetch counts here
		for i := range 100 {
			_, _ = v.Cards.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_invented%d", i)), from(fmt.Sprintf("192.0.%d.1", i)), time.Now())
		}
		spent = l.count()
		_, _ = v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(2), time.Now()), friend, time.Now())
		if l.count() == spent {
			t.Error("the new key of a known agent was not looked up, because strangers had spent everything")
		}
	})
}

// TestUnpaidLookupLeavesNoTrace checks that a look-up that one message cannot pay for is paid for by another message
// that waits for it.
func TestUnpaidLookupLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: slowRecords{records(t)}})
		flood := from("2001:db8::1")
		for i := range 100 {
			_, _ = c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_stranger%d", i)), flood, time.Now())
		}
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := c.Lookup(t.Context(), sarah, flood, time.Now()); !errors.Is(err, wire.ErrRateLimited) {
				t.Errorf("Lookup() of a source that spent its share = %v, want ErrRateLimited", err)
			}
		})
		synctest.Wait() // it reads the pin
		both.Go(func() {
			if _, err := c.Lookup(t.Context(), sarah, from("192.0.2.1"), time.Now()); err != nil {
				t.Errorf("Lookup() of a source that waits with it = %v", err)
			}
		})
		both.Wait()
	})
}

// slowRecords takes a millisecond for each read.
type slowRecords struct{ store.Records }

func (r slowRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	time.Sleep(time.Millisecond)
	return r.Records.Get(ctx, ns, key, now)
}

// TestAnswersFetchOnceAMinute checks that an answer to our message that does not verify makes us fetch the card again
// at once, because the peer may have rotated its key, but that bad answers of a peer cause at most one fetch a minute.
func TestAnswersFetchOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
		peer, err := v.Cards.Find(t.Context(), sarah, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for minute := range 5 {
			for range 100 {
				bad := forgeMessage(t, sarah, time.Now())
				m, err := wire.ParseMessage(bad.Tree)
				if err != nil {
					t.Fatal(err)
				}
				sent := wire.Message{ID: "msg_ours", From: m.To, To: sarah, Conversation: m.Conversation}
				if _, err := v.VerifyReply(t.Context(), sent, m, peer, time.Now()); !errors.Is(err, ErrReplyUnverified) {
					t.Fatalf("Reply() = %v, want ErrReplyUnverified", err)
				}
				time.Sleep(600 * time.Millisecond)
			}
			if got := l.count(); got != minute+2 { // the first fetch found the card
				t.Fatalf("%d fetches after minute %d, want %d", got, minute+1, minute+2)
			}
		}
	})
}

// TestBadSignaturesWhileFetching sends messages with bad signatures while the card of their sender is fetched again.
func TestBadSignaturesWhileFetching(t *testing.T) {
	l := newListing()
	l.put(sarah, key(1))
	c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t), LookupsPerMinute: -1})
	start := time.Now()
	peer, err := c.Lookup(t.Context(), sarah, Origin{}, start)
	if err != nil {
		t.Fatal(err)
	}
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() {
			for minute := range 200 {
				if _, changed, err := c.suspect(t.Context(), peer, &Origin{}, start.Add(time.Duration(minute)*refetchGap)); err != nil || changed {
					t.Errorf("suspect() = %t, %v", changed, err)
				}
			}
		})
	}
	senders.Wait()
	if l.notModified < 100 {
		t.Errorf("the card was fetched again %d times, want about 200", l.notModified)
	}
}
