package directory

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestRegistrationFlood: two thousand registrations from one network within an hour leave twenty cards, and another
// network can still register (AM-58).
func TestRegistrationFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHost: -1} })
		h := w.edge.Handler()
		taken := 0
		for i := range 2000 {
			card := testCard(fmt.Sprintf("am_%05d", i))
			remote := fmt.Sprintf("[2001:db8::%x]:9", i) // addresses of one /64
			if send(h, "POST", "/v1/agents", string(card.JSON()), append(withBearer(alice), "Remote", remote)...).Code == 201 {
				taken++
			}
		}
		if n, err := w.reg.cards.Count(t.Context(), wire.Now()); taken != admission.DefaultPerHour || n != taken || err != nil {
			t.Errorf("%d were taken and %d are listed, want %d; %v", taken, n, admission.DefaultPerHour, err)
		}
		want(t, w.do("POST", "/v1/agents", string(testCard("am_else").JSON()), append(withBearer(bob), "Remote", "[2001:db9::1]:9")...), 201, "")
	})
}

// TestLargeCards: a page ends before it gets large, whatever its limit. The pages and the feed still have every card
// once.
func TestLargeCards(t *testing.T) {
	w := newWorld(t)
	for i := range 40 {
		w.register(alice, testCard(fmt.Sprintf("am_%02d", i), text("padding", strings.Repeat("x", wire.MaxCard-2000))))
	}
	for _, query := range []string{"limit=100", "limit=100&q=agent&capability=scheduling"} {
		n := 0
		for cursor := ""; ; {
			got := w.do("GET", "/v1/agents?"+query+"&cursor="+cursor, "")
			if got.Body.Len() > maxPageBytes+wire.MaxCard {
				t.Fatalf("a page has %d bytes", got.Body.Len())
			}
			var ids []string
			ids, cursor = decodeList(t, got)
			if n += len(ids); cursor == "" {
				break
			}
		}
		if n != 40 {
			t.Errorf("?%s: the pages have %d cards, want 40", query, n)
		}
	}
	n, pages := 0, 0
	for since := ""; ; {
		page, err := w.reg.Changes(t.Context(), since, 100, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n, since, pages = n+len(page.Changes), page.Next, pages+1; !page.More {
			break
		}
	}
	if n != 40 || pages < 3 {
		t.Errorf("%d pages of the feed have %d changes, want 40 in 3 or more", pages, n)
	}
}

// TestOldCursor: a cursor stays valid for as long as its directory exists (AM-54).
func TestOldCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldWithCards(t, 4)
		_, cursor := w.list("limit=2&capability=scheduling")
		for range 13 {
			time.Sleep(28 * 24 * time.Hour)
			for i := range 4 {
				want(t, w.do("PUT", fmt.Sprintf("/v1/agents/am_%03d", i), "", withBearer(alice)...), 200, "")
			}
		}
		if ids, next := w.list("limit=2&capability=scheduling&cursor=" + cursor); len(ids) != 2 || ids[0] != "am_002" || next != "" {
			t.Errorf("a year later the cursor gives %v, %q", ids, next)
		}
	})
}
