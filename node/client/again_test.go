package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestAgain checks that a card is fetched again after a failed delivery, even if it is still cached, but not within the
// gap, and that the cached card is used if no directory can be asked (AM-86).
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListing()
		l.control = "public, max-age=300"
		l.put(sarah, key(1))
		c := NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})
		again := func(gap time.Duration, want string) {
			t.Helper()
			p, err := c.FindAgain(t.Context(), sarah, gap, time.Now())
			if err != nil || p.Card.Endpoint != want {
				t.Errorf("Again = %s, %v, want %s", p.Card.Endpoint, err, want)
			}
		}
		moveTo := func(endpoint string) string {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.cards[sarah] = l.cards[sarah].With("endpoint", wire.Text(endpoint))
			return endpoint
		}
		first := l.cards[sarah].GetStr("endpoint")
		again(time.Minute, first)
		second := moveTo("https://second.example/agentmesh")
		time.Sleep(time.Minute - time.Nanosecond)
		again(time.Minute, first)
		again(0, second)
		third := moveTo("https://third.example/agentmesh")
		time.Sleep(time.Minute)
		again(time.Minute, third)

		l.mu.Lock()
		l.down = true
		l.mu.Unlock()
		again(0, third)
		l.mu.Lock()
		l.down = false
		delete(l.cards, sarah)
		l.mu.Unlock()
		if _, err := c.FindAgain(t.Context(), sarah, 0, time.Now()); !errors.Is(err, ErrUnknownAgent) {
			t.Errorf("Again of a withdrawn card = %v, want ErrUnknownAgent", err)
		}
	})
}
