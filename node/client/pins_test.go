package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// repin accepts a key of sarah on behalf of the owner.
func repin(c *Cards, fingerprint string) error {
	changes, err := c.RepinChanges(context.Background(), sarah, fingerprint, time.Now())
	if err == nil && len(changes) > 0 {
		err = c.cfg.Records.Apply(context.Background(), changes, time.Now())
	}
	c.Drop(sarah)
	return err
}

// TestKeySwapIsRefused checks that if the directory replaces the key during a conversation, messages with the new key
// are refused, the owner is notified once, and only the owner's decision pins the new key (THREATS 10).
func TestKeySwapIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, recs := newListing(), records(t)
		l.put(sarah, key(1))
		var reported changes
		cfg := CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: recs, OnKeyChange: reported.note}
		v := &Verifier{Cards: NewCards(cfg)}
		send := func(n byte) error {
			_, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(n), time.Now()), Origin{}, time.Now())
			return err
		}
		if err := send(1); err != nil {
			t.Fatal(err)
		}
		l.put(sarah, key(2))
		time.Sleep(2 * time.Minute)
		if err := send(2); !errors.Is(err, wire.ErrSignature) {
			t.Errorf("message with the swapped key = %v, want ErrSignature", err)
		}
		want := []KeyChange{{Agent: sarah, Directory: home, Old: key(1).Public().Fingerprint(), New: key(2).Public().Fingerprint(), At: time.Now()}}
		if diff := cmp.Diff(want, reported.list); diff != "" {
			t.Error(diff)
		}
		if err := send(1); !errors.Is(err, wire.ErrSignature) {
			t.Errorf("message with the old key, which may have been stolen = %v, want ErrSignature", err)
		}
		if _, err := v.Cards.Find(t.Context(), sarah, time.Now()); err == nil {
			t.Error("Find() while the key is in doubt succeeded")
		} else if changed, ok := errors.AsType[*KeyChangedError](err); !ok || changed.Hint() == "" {
			t.Errorf("Find() = %v, want a KeyChangedError", err)
		}

		// After a restart, the same key comes again and again; the owner is notified once a day.
		v.Cards = NewCards(cfg)
		for range 10 {
			time.Sleep(2 * time.Minute)
			send(2)
		}
		if len(reported.list) != 1 {
			t.Errorf("the owner was notified %d times, want once", len(reported.list))
		}
		time.Sleep(24 * time.Hour)
		if send(2); len(reported.list) != 2 {
			t.Errorf("the owner was notified %d times after a day, want twice", len(reported.list))
		}

		if err := repin(v.Cards, key(3).Public().Fingerprint()); !errors.Is(err, ErrNoKeyChange) {
			t.Errorf("RepinChanges() of a key that the agent does not have = %v, want ErrNoKeyChange", err)
		}
		for range 2 { // the owner may accept a key again
			if err := repin(v.Cards, key(2).Public().Fingerprint()); err != nil {
				t.Fatal(err)
			}
		}
		if pin, err := v.Cards.PinOf(t.Context(), sarah, time.Now()); err != nil || pin.Name == "" {
			t.Errorf("pin = %+v, %v, want the name as before", pin, err)
		}
		if err := send(2); err != nil {
			t.Errorf("message with the accepted key = %v", err)
		}
		if err := send(1); !errors.Is(err, wire.ErrSignature) {
			t.Errorf("message with the old key = %v, want ErrSignature", err)
		}
	})
}

func TestKeyChangeReportsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.put(sarah, key(1))
		var reported changes
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t), OnKeyChange: reported.note})
		c.Find(t.Context(), sarah, time.Now())
		for n := range byte(60) {
			time.Sleep(11 * time.Minute)
			l.put(sarah, key(100+n)) // a new key each time
			c.Lookup(t.Context(), sarah, Origin{}, time.Now())
		}
		if got := len(reported.list); got < 9 || got > 11 {
			t.Errorf("reported %d times in 11 hours, want once an hour", got)
		}
	})
}

func TestAddPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, recs := newListing(), records(t)
		cfg := CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{Local: true}), Records: recs}
		c := NewCards(cfg)
		card := testCard(sarah, key(1)).With("endpoint", wire.Text("http://127.0.0.1:4000/agentmesh"))
		if _, err := c.Find(t.Context(), sarah, time.Now()); !errors.Is(err, ErrUnknownAgent) {
			t.Fatalf("Find() = %v, want ErrUnknownAgent", err)
		}
		if p, err := c.AddPeer(t.Context(), card, time.Now()); err != nil || p.Reach != Loopback {
			t.Fatalf("AddPeer() = %v, %v", p.Reach, err)
		}
		if _, err := c.AddPeer(t.Context(), card.With("public_key", wire.Text("x")), time.Now()); !errors.Is(err, ErrUnusableCard) {
			t.Errorf("AddPeer() of a bad key = %v, want ErrUnusableCard", err)
		}
		l.put(sarah, key(66)) // must be ignored
		asked := l.count()
		for _, c := range []*Cards{c, NewCards(cfg)} {
			p, err := c.Find(t.Context(), sarah, time.Now())
			if err != nil || p.Directory != "" || p.Reach != Loopback || p.Key.Fingerprint() != key(1).Public().Fingerprint() || p.Pinned.IsZero() {
				t.Errorf("Find() = %+v, %v; want the owner's card", p, err)
			}
		}
		if l.count() != asked {
			t.Error("a directory was asked about the owner's peer")
		}
		for only, want := range map[wire.AgentID]int{"": 1, sarah: 1, "am_other": 0} {
			pins := listPins(t, c, only)
			if len(pins) != want || want > 0 && (!pins[0].FromOwner || pins[0].Agent != sarah) {
				t.Errorf("Pins(%q) = %+v", only, pins)
			}
		}
		// If its key rotates in a directory, the first message with the new key makes us follow.
		v := &Verifier{Cards: c}
		time.Sleep(2 * time.Minute)
		l.rotate(t, home, testCard(sarah, key(2)), key(2), key(1), false)
		if _, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(2), time.Now()), Origin{}, time.Now()); err != nil {
			t.Errorf("message after a rotation = %v", err)
		}
		for _, c := range []*Cards{c, NewCards(cfg)} {
			p, err := c.Find(t.Context(), sarah, time.Now())
			if err != nil || p.Key.Fingerprint() != key(2).Public().Fingerprint() || p.Card.Endpoint != "http://127.0.0.1:4000/agentmesh" {
				t.Errorf("Find() after a rotation = %s, %v; want the new key at the owner's endpoint", p.Card.Endpoint, err)
			}
		}
		if err := c.Forget(t.Context(), sarah); err != nil {
			t.Fatal(err)
		}
		if pins := listPins(t, c, ""); len(pins) != 0 {
			t.Errorf("Pins() after Forget() = %v", pins)
		}
		if p, err := c.Find(t.Context(), sarah, time.Now()); err != nil || p.Directory != home {
			t.Errorf("Find() after Forget() = %s, %v", p.Directory, err)
		}
	})
}

func listPins(t *testing.T, c *Cards, only wire.AgentID) (pins []Pin) {
	t.Helper()
	for p, err := range c.Pins(t.Context(), only, time.Now()) {
		if err != nil {
			t.Fatal(err)
		}
		pins = append(pins, p)
	}
	return pins
}

// TestPinsOfStrangers checks that nothing is stored about a stranger before its signature has verified, and that its
// pin expires.
func TestPinsOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, recs := newListing(), records(t)
		l.put(sarah, key(1))
		cards := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: recs})
		v := &Verifier{Cards: cards}
		count := func() int { return len(listPins(t, cards, "")) }
		v.Authenticate(t.Context(), forgeMessage(t, sarah, time.Now()), Origin{}, time.Now())
		if n := count(); n != 0 {
			t.Errorf("%d pins after a forged message", n)
		}
		first := time.Now()
		authenticate := func() Checked {
			t.Helper()
			c, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(1), time.Now()), Origin{}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		authenticate()
		for range 10 { // a stranger that keeps writing stays pinned
			time.Sleep(60 * 24 * time.Hour)
			if c := authenticate(); !c.Pinned.Equal(first) {
				t.Fatalf("pinned at %v, want the first use", c.Pinned)
			}
		}
		if n := count(); n != 1 {
			t.Errorf("%d pins of a stranger who keeps writing, want 1", n)
		}
		time.Sleep(strangerPinLife)
		if n := count(); n != 0 {
			t.Errorf("%d pins after half a year of silence", n)
		}
		if _, err := cards.Find(t.Context(), sarah, time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * strangerPinLife)
		if n := count(); n != 1 {
			t.Errorf("%d pins, want the one of the owner's peer", n)
		}
	})
}

// TestPinRace checks that if another key was pinned between look-up and first use, the message is refused and the next
// look-up decides.
func TestPinRace(t *testing.T) {
	l := newListing()
	l.put(sarah, key(1))
	cards := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
	now := time.Now()
	peer, err := cards.Lookup(t.Context(), sarah, Origin{}, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cards.AddPeer(t.Context(), testCard(sarah, key(2)), now); err != nil {
		t.Fatal(err)
	}
	if _, err := cards.pin(t.Context(), peer, byStranger, now); !errors.Is(err, wire.ErrSignature) {
		t.Errorf("pin() over another key = %v, want ErrSignature", err)
	}
}

func TestPinQuotaRefusesNobody(t *testing.T) {
	recs, now := records(t), time.Now()
	for i := 0; i < maxStrangerPins; i += 500 {
		var batch []store.Change
		for j := range 500 {
			p := storedPin{Pin: Pin{Agent: wire.AgentID(fmt.Sprintf("am_%d", i+j)), Fingerprint: "x"}}
			batch = append(batch, p.change(now))
		}
		if err := recs.Apply(t.Context(), batch, now); err != nil {
			t.Fatal(err)
		}
	}
	l := newListing()
	l.put(sarah, key(1))
	cards := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: recs})
	v := &Verifier{Cards: cards}
	for range 2 {
		if _, err := v.Authenticate(t.Context(), signMessage(t, sarah, "am_me", key(1), now), Origin{}, now); err != nil {
			t.Fatalf("Authenticate() with full pins = %v", err)
		}
	}
	if _, err := cards.Find(t.Context(), sarah, now); err != nil {
		t.Fatal(err)
	}
	if pin, err := cards.loadPin(t.Context(), sarah, now); err != nil || !pin.FromOwner {
		t.Errorf("the owner's peer is not pinned: %+v, %v", pin, err)
	}
}
