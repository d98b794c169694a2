package client

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// THREATS 11: a sender of bad signatures makes us ask the directory at most once a minute, whatever the directory
// says about caching and whether or not it knows the sender.
func TestBadSignaturesFetchOnceAMinute(t *testing.T) {
	for _, tt := range []struct {
		name, control string
		known, down   bool
		want          error
	}{
		{name: "known", known: true, want: wire.ErrSignature},
		{name: "known, not to be cached", control: "no-store", known: true, want: wire.ErrSignature},
		{name: "unknown", want: wire.ErrUnknownSender},
		{name: "directory down", down: true, want: wire.ErrNoDirectory},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newListing()
				l.control, l.down = tt.control, tt.down
				if tt.known {
					l.put(sarah, key(1))
				}
				v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
				bad := forged(t, sarah, time.Now())
				for minute := range 5 {
					for range 2000 {
						if _, err := v.Authenticate(t.Context(), bad, time.Now()); !errors.Is(err, tt.want) {
							t.Fatalf("Authenticate() = %v, want %v", err, tt.want)
						}
						time.Sleep(30 * time.Millisecond)
					}
					if got := l.count(); got > minute+1 {
						t.Fatalf("%d fetches after minute %d", got, minute+1)
					}
				}
				if l.count() < 4 {
					t.Errorf("%d fetches in 5 minutes: a new key would not be seen", l.count())
				}
			})
		})
	}
}

// AM-43: strangers spend the node's budget and no more; the owner is not bound by it.
func TestLookupBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		var limited int
		for i := range 200 {
			_, err := c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_stranger%d", i)), time.Now())
			if e, ok := errors.AsType[*wire.Error](err); ok && errors.Is(err, wire.ErrRateLimited) {
				limited++
				if e.RetryAfter != time.Second {
					t.Fatalf("RetryAfter = %v, want 1s", e.RetryAfter)
				}
			}
		}
		if l.count() != 60 || limited != 140 {
			t.Errorf("%d fetches, %d refused; want 60, 140", l.count(), limited)
		}
		if _, err := c.Find(t.Context(), sarah, time.Now()); err != nil {
			t.Errorf("Find() for the owner = %v", err)
		}
		time.Sleep(time.Minute)
		if _, err := c.Lookup(t.Context(), "am_late", time.Now()); !errors.Is(err, wire.ErrUnknownSender) {
			t.Errorf("Lookup() a minute later = %v, want ErrUnknownSender", err)
		}
		time.Sleep(maxFresh)
		for i := range 200 {
			_, _ = c.Lookup(t.Context(), wire.AgentID(fmt.Sprintf("am_another%d", i)), time.Now())
		}
		if _, err := c.Lookup(t.Context(), sarah, time.Now()); err != nil {
			t.Errorf("Lookup() of whom the owner wrote to = %v, although only strangers spent the budget", err)
		}
		if _, err := c.Lookup(t.Context(), "am_stranger0", time.Now()); !errors.Is(err, wire.ErrRateLimited) {
			t.Errorf("Lookup() of a stranger = %v, want ErrRateLimited", err)
		}
		if c.known.Len() > 1 || len(c.flights) != 0 {
			t.Errorf("%d known, %d flights left", c.known.Len(), len(c.flights))
		}
	})
}

// One address that makes up senders spends its share, and leaves the rest to others.
func TestLookupShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		flood := PaidBy(t.Context(), "2001:db8::/64")
		for i := range 100 {
			_, _ = c.Lookup(flood, wire.AgentID(fmt.Sprintf("am_stranger%d", i)), time.Now())
		}
		if l.count() != 20 {
			t.Errorf("one address caused %d fetches, want 20", l.count())
		}
		var refused *wire.Error
		if _, err := c.Lookup(flood, "am_another", time.Now()); !errors.As(err, &refused) || refused.RetryAfter != 3*time.Second {
			t.Errorf("Lookup() beyond its share = %v, want a wait of 3 s", err)
		}
		if _, err := c.Lookup(PaidBy(t.Context(), "192.0.2.1"), sarah, time.Now()); err != nil {
			t.Errorf("Lookup() for another address = %v", err)
		}
		if _, err := c.Lookup(flood, sarah, time.Now()); err != nil {
			t.Errorf("Lookup() of a card that is cached = %v", err)
		}
		for i := range 100 {
			_, _ = c.Lookup(PaidBy(t.Context(), fmt.Sprintf("192.0.2.%d", i)), wire.AgentID(fmt.Sprintf("am_many%d", i)), time.Now())
		}
		if l.count() != 60 {
			t.Errorf("many addresses caused %d fetches, want 60 in all", l.count())
		}
	})
}

// TestAnswersFetchOnceAMinute: an answer to a message of ours that does not verify has the card fetched although that was
// done just now, for its sender may have rotated its key; but a peer that answers badly causes one fetch a minute.
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
				bad := forged(t, sarah, time.Now())
				m, err := wire.ParseMessage(bad.Tree)
				if err != nil {
					t.Fatal(err)
				}
				sent := wire.Message{ID: "msg_ours", From: m.To, To: sarah, Conversation: m.Conversation}
				if _, err := v.Reply(t.Context(), sent, m, peer, time.Now()); !errors.Is(err, ErrReplyUnverified) {
					t.Fatalf("Reply() = %v, want ErrReplyUnverified", err)
				}
				time.Sleep(600 * time.Millisecond)
			}
			if got := l.count(); got != minute+2 { // the first one found the card
				t.Fatalf("%d fetches after minute %d, want %d", got, minute+1, minute+2)
			}
		}
	})
}

// Messages with bad signatures come while the card of their sender is fetched again.
func TestBadSignaturesWhileFetching(t *testing.T) {
	l := newListing()
	l.put(sarah, key(1))
	c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), LookupsPerMinute: -1})
	start := time.Now()
	peer, err := c.Lookup(t.Context(), sarah, start)
	if err != nil {
		t.Fatal(err)
	}
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() {
			for minute := range 200 {
				if _, changed, err := c.suspect(t.Context(), peer, false, start.Add(time.Duration(minute)*refetchGap)); err != nil || changed {
					t.Errorf("suspect() = %t, %v", changed, err)
				}
			}
		})
	}
	senders.Wait()
	if l.fresh < 100 {
		t.Errorf("the card was fetched again %d times, want about 200", l.fresh)
	}
}
