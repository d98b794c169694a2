package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	home  = "https://directory.example/v1"
	other = "https://other.example/v1"
	sarah = wire.AgentID("am_sarah")
)

// TestLookupCaches checks that a card is cached for ten minutes, or as long as the directory allows, and then requested
// conditionally (AM-45, AM-59).
func TestLookupCaches(t *testing.T) {
	for _, tt := range []struct {
		control string
		want    time.Duration
	}{
		{"", 10 * time.Minute},
		{"public, max-age=300", 5 * time.Minute},
		{"public, max-age=3600", 10 * time.Minute},
		{"public, max-age=7", 7 * time.Second},
	} {
		t.Run(tt.control, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newListing()
				l.control = tt.control
				l.put(sarah, key(1))
				c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
				lookup := func() Peer {
					t.Helper()
					p, err := c.Lookup(t.Context(), sarah, Origin{}, time.Now())
					if err != nil {
						t.Fatal(err)
					}
					return p
				}
				if p := lookup(); !p.Until.Equal(time.Now().Add(tt.want)) {
					t.Errorf("Until is %v away, want %v", time.Until(p.Until), tt.want)
				}
				time.Sleep(tt.want - time.Nanosecond)
				if lookup(); l.count() != 1 {
					t.Errorf("%d fetches before the end, want 1", l.count())
				}
				time.Sleep(time.Nanosecond)
				if lookup(); l.count() != 2 || l.notModified != 1 {
					t.Errorf("%d fetches, %d not modified; want 2, 1", l.count(), l.notModified)
				}
				l.mu.Lock()
				delete(l.cards, sarah)
				l.mu.Unlock()
				time.Sleep(tt.want)
				if _, err := c.Lookup(t.Context(), sarah, Origin{}, time.Now()); !errors.Is(err, wire.ErrUnknownSender) {
					t.Errorf("Lookup() of a withdrawn card = %v, want ErrUnknownSender", err)
				}
			})
		})
	}
}

func TestLookupNegativeCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		c.Lookup(t.Context(), sarah, Origin{}, time.Now())
		l.put(sarah, key(1))
		time.Sleep(time.Minute - time.Nanosecond)
		if _, err := c.Lookup(t.Context(), sarah, Origin{}, time.Now()); !errors.Is(err, wire.ErrUnknownSender) {
			t.Errorf("Lookup() within the minute = %v, want ErrUnknownSender", err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := c.Lookup(t.Context(), sarah, Origin{}, time.Now()); err != nil {
			t.Errorf("Lookup() after the minute = %v", err)
		}

		// If a directory is down, the sender gets a time to come back, and the owner need not wait.
		l.down = true
		c.Lookup(t.Context(), "am_chris", Origin{}, time.Now())
		time.Sleep(20 * time.Second)
		_, err := c.Lookup(t.Context(), "am_chris", Origin{}, time.Now())
		if e, ok := errors.AsType[*wire.Error](err); !ok || !errors.Is(err, wire.ErrNoDirectory) || e.RetryAfter != 40*time.Second {
			t.Errorf("Lookup() = %v, want ErrNoDirectory after 40s", err)
		}
		if _, err := c.Find(t.Context(), "am_chris", time.Now()); !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Find() = %v, want ErrUnreachable, in one line", err)
		}
		l.down = false
		l.put("am_chris", key(2))
		if _, err := c.Find(t.Context(), "am_chris", time.Now()); err != nil {
			t.Errorf("Find() = %v", err)
		}
	})
}

func TestLookupSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.held = make(chan struct{})
		l.put(sarah, key(1))
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		impatient, cancel := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := c.Lookup(impatient, sarah, Origin{}, time.Now()); err == nil {
				t.Error("the caller that gave up got a card")
			}
		})
		synctest.Wait()
		for range 64 {
			callers.Go(func() {
				if _, err := c.Lookup(t.Context(), sarah, Origin{}, time.Now()); err != nil {
					t.Errorf("Lookup() = %v", err)
				}
			})
		}
		synctest.Wait()
		if l.count() != 1 {
			t.Errorf("%d fetches under way, want 1", l.count())
		}
		cancel() // the first caller gives up, and another one takes over
		synctest.Wait()
		close(l.held)
		callers.Wait()
		if l.count() != 2 {
			t.Errorf("%d fetches, want 2", l.count())
		}
	})
}

// TestLookupOrder checks that directories are asked in the configured order, except that the directory of the pin comes
// first, and that a directory that is down does not hide the next one (AM-86).
func TestLookupOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newListing(), newListing()
		second.put(sarah, key(1))
		var reported changes
		c := NewCards(CardsConfig{
			Directories: []*Directory{first.at(home), second.at(other)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t), OnKeyChange: reported.note,
		})
		find := func() (Peer, error) {
			time.Sleep(11 * time.Minute)
			return c.Find(t.Context(), sarah, time.Now())
		}
		if p, err := find(); err != nil || p.Directory != other {
			t.Fatalf("Find() = %s, %v", p.Directory, err)
		}
		first.put(sarah, key(66)) // an attacker registers the id elsewhere
		asked := first.count()
		if p, err := find(); err != nil || p.Directory != other || first.count() != asked {
			t.Errorf("Find() = %s, %v; want the directory of the pin, and no other asked", p.Directory, err)
		}
		second.down = true
		if _, err := find(); !errors.Is(err, ErrUnreachable) || len(reported.list) > 0 {
			t.Errorf("Find() while the pinned directory is down = %v, reported %v; want ErrUnreachable and no alarm", err, reported.list)
		}
		first.put(sarah, key(1))
		if p, err := find(); err != nil || p.Directory != home {
			t.Errorf("Find() = %s, %v; want the other directory with the same key", p.Directory, err)
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	l := newListing()
	c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t), Size: 100, LookupsPerMinute: -1})
	now := time.Now()
	for i := range 300 {
		id := wire.AgentID(fmt.Sprintf("am_%d", i))
		l.put(id, key(1))
		if _, err := c.Lookup(t.Context(), id, Origin{}, now); err != nil {
			t.Fatal(err)
		}
		c.Lookup(t.Context(), id+"_none", Origin{}, now)
	}
	if c.cache.Len() != 100 || c.misses.Len() != 100 {
		t.Errorf("%d cached, %d misses; want 100, 100", c.cache.Len(), c.misses.Len())
	}
	sum := 0
	for _, e := range c.cache.Values() {
		sum += e.weight
	}
	if sum != c.weight || sum == 0 {
		t.Errorf("weight %d, want the sum %d", c.weight, sum)
	}
	// These cards are as heavy as the strict reader allows, so the weight is the limit and not the number.
	c = NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t), LookupsPerMinute: -1})
	heavy := wire.Texts(strings.Split(strings.Repeat("x", 9000), ""))
	for i := range 200 {
		id := wire.AgentID(fmt.Sprintf("am_heavy%d", i))
		l.cards[id] = testCard(id, key(1)).With("metadata", wire.Obj(wire.Member{Key: "x", Value: heavy}))
		if _, err := c.Lookup(t.Context(), id, Origin{}, now); err != nil {
			t.Fatal(err)
		}
	}
	if c.weight > maxWeight || c.cache.Len() < 50 {
		t.Errorf("weight %d of %d cards, want at most %d", c.weight, c.cache.Len(), maxWeight)
	}
}

// TestReachOfCards checks that the source of a card decides which endpoints the card may name, and that the endpoint is
// checked again when it is dialed (AM-82).
func TestReachOfCards(t *testing.T) {
	loopbackCard := func() *listing {
		l := newListing()
		l.cards[sarah] = testCard(sarah, key(1)).With("endpoint", wire.Text("http://127.0.0.1:4000/agentmesh"))
		return l
	}
	for _, tt := range []struct {
		name, base string
		local      bool
		want       error
		reach      Reach
	}{
		{"local profile, loopback directory", "http://127.0.0.1:3141/v1", true, nil, Loopback},
		{"local profile, localhost", "http://localhost:3141/v1", true, nil, Loopback},
		{"local profile, remote directory", home, true, ErrUnusableCard, Public},
		{"local profile, a name that only looks so", "https://localhost.example/v1", true, ErrUnusableCard, Public},
		{"public profile, loopback directory", "http://127.0.0.1:3141/v1", false, ErrUnusableCard, Public},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := NewHTTP(HTTPConfig{Local: tt.local})
			c := NewCards(CardsConfig{Directories: []*Directory{loopbackCard().at(tt.base)}, HTTP: h, Records: records(t)})
			p, err := c.Find(t.Context(), sarah, time.Now())
			if !errors.Is(err, tt.want) || err == nil && p.Reach != tt.reach {
				t.Errorf("Find() = reach %v, %v; want %v, %v", p.Reach, err, tt.reach, tt.want)
			}
			// A call with the reach of a source must not dial loopback, even if the card names it.
			dials := countDials(h)
			h.Send(t.Context(), Peer{Card: wire.Card{Endpoint: "http://127.0.0.1:4000/"}, Reach: tt.reach}, nil)
			if got := dials.Load() > 0; got != (tt.reach == Loopback) {
				t.Errorf("dialed loopback: %v", got)
			}
		})
	}
}

func TestLookupRefusesUnusableCards(t *testing.T) {
	l := newListing()
	good := testCard(sarah, key(1))
	for name, card := range map[string]wire.Value{
		"key":      good.With("public_key", wire.Text("ed25519:AAAA")),
		"endpoint": good.With("endpoint", wire.Text("ftp://x/")),
		"version":  good.With("agentmesh", wire.Text("9")),
		"id":       good.With("agent_id", wire.Text("am_chris")),
		"big":      good.With("metadata", wire.Obj(wire.Member{Key: "x", Value: wire.Text(strings.Repeat("x", wire.MaxCard))})),
	} {
		l.cards[sarah] = card
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		want := wire.ErrUnknownSender
		if name == "id" || name == "big" {
			want = wire.ErrNoDirectory // the directory is at fault
		}
		if _, err := c.Lookup(t.Context(), sarah, Origin{}, time.Now()); !errors.Is(err, want) {
			t.Errorf("%s: Lookup() = %v, want %v", name, err, want)
		}
	}
	c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
	if _, err := c.Lookup(t.Context(), "am_../../x", Origin{}, time.Now()); !errors.Is(err, wire.ErrUnknownSender) {
		t.Errorf("Lookup() of a bad id = %v", err)
	}
}
