package directory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestRegistrationFlood: ten thousand registrations of one network within an hour leave twenty cards, and nobody else
// pays for them (AM-58).
func TestRegistrationFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHost: -1} })
		h := w.edge.Handler()
		taken := 0
		for i := range 10_000 {
			card := testCard(fmt.Sprintf("am_%05d", i))
			remote := fmt.Sprintf("[2001:db8::%x]:9", i) // addresses of one /64
			if send(h, "POST", "/v1/agents", string(card.JSON()), append(as(alice), "Remote", remote)...).Code == 201 {
				taken++
			}
		}
		if n, err := w.reg.cards.Count(t.Context(), clock()); taken != defaultPerHour || n != taken || err != nil {
			t.Errorf("%d were taken and %d are listed, want %d; %v", taken, n, defaultPerHour, err)
		}
		want(t, w.ask("POST", "/v1/agents", string(testCard("am_else").JSON()), append(as(bob), "Remote", "[2001:db9::1]:9")...), 201, "")
	})
}

// TestOldCursor: a cursor does not age (AM-54).
func TestOldCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fullWorld(t, 4)
		_, cursor := w.list("limit=2&capability=scheduling")
		for range 13 {
			time.Sleep(28 * 24 * time.Hour)
			for i := range 4 {
				want(t, w.ask("PUT", fmt.Sprintf("/v1/agents/am_%03d", i), "", as(alice)...), 200, "")
			}
		}
		if ids, next := w.list("limit=2&capability=scheduling&cursor=" + cursor); len(ids) != 2 || ids[0] != "am_002" || next != "" {
			t.Errorf("a year later the cursor gives %v, %q", ids, next)
		}
	})
}
