package directory

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestCardsWithoutEscapes: signs in a card do not make answers with the card and its export longer. Clients bound both
// by the size of a card.
func TestCardsWithoutEscapes(t *testing.T) {
	w := newWorld(t)
	card, now := testCard("am_x", text("signs", strings.Repeat("<", 10_000))), time.Now()
	w.register(alice, card)
	card = card.With("public_key", wire.Text(testKey("other").PublicText()))
	want(t, w.do("PUT", "/v1/agents/am_x", string(card.JSON()), append(withBearer(alice),
		wire.HeaderKeyProof, proof(testKey("other"), "PUT", "/v1/agents/am_x", testBase, now, card),
		wire.HeaderPreviousKeyProof, proof(testKey("am_x"), "PUT", "/v1/agents/am_x", testBase, now, card))...), 200, "")
	size := len(card.JSON())
	for _, path := range []string{"/v1/agents/am_x/record", "/v1/agents/am_x/keys", "/v1/changes"} {
		if got := w.do("GET", path, ""); got.Code != 200 || got.Body.Len() < size || got.Body.Len() > size+3000 {
			t.Errorf("%s = %d with %d bytes for a card of %d", path, got.Code, got.Body.Len(), size)
		}
	}
	if got := send(w.owner.Handler(), "GET", "/owner/directory/export", ""); got.Code != 200 || got.Body.Len() > 2*size+3000 {
		t.Errorf("export = %d with %d bytes for a card of %d and the signed one", got.Code, got.Body.Len(), size)
	}
}

func TestKeptCardsAreNeverStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		get := func(w *world) string { return w.do("GET", "/v1/agents/am_a", "").Body.String() }
		w.register(alice, testCard("am_a"))
		get(w)
		want(t, w.do("PUT", "/v1/agents/am_a", string(testCard("am_a", text("name", "Second")).JSON()), withBearer(alice)...), 200, "")
		if got := get(w); !strings.Contains(got, "Second") {
			t.Errorf("after a PUT: %s", got)
		}
		// A change by another instance on the same store is seen in time.
		other := newWorldOver(t, w.store)
		want(t, other.do("PUT", "/v1/agents/am_a", string(testCard("am_a", text("name", "Third")).JSON()), withBearer(alice)...), 200, "")
		time.Sleep(maxKeptAge)
		if got := get(w); !strings.Contains(got, "Third") {
			t.Errorf("after a PUT elsewhere: %s", got)
		}
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...), 204, "")
		want(t, w.do("GET", "/v1/agents/am_a", ""), 404, "AGENT_UNAVAILABLE")
	})
}

func TestKeptCardsEndWithTheirTime(t *testing.T) { // AM-55 to the millisecond, from memory too
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		time.Sleep(lifetime - time.Millisecond)
		want(t, w.do("GET", "/v1/agents/am_a", ""), 200, "")
		time.Sleep(time.Millisecond)
		want(t, w.do("GET", "/v1/agents/am_a", ""), 404, "AGENT_UNAVAILABLE")
	})
}

func TestKeptPagesAreNeverStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		list := func() string { return w.do("GET", "/v1/agents?capability=scheduling", "").Body.String() }
		w.register(alice, testCard("am_a"))
		if list(); w.reg.pages.Len() != 1 {
			t.Fatalf("%d pages are kept, want 1", w.reg.pages.Len())
		}
		w.register(alice, testCard("am_b"))
		if got := list(); !strings.Contains(got, "am_b") {
			t.Errorf("after a registration: %s", got)
		}
		other := newWorldOver(t, w.store) // another instance on the same store
		other.register(alice, testCard("am_c"))
		time.Sleep(maxKeptAge)
		if got := list(); !strings.Contains(got, "am_c") {
			t.Errorf("after a registration elsewhere: %s", got)
		}
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...), 204, "")
		if got := list(); strings.Contains(got, "am_a") {
			t.Errorf("after a withdrawal: %s", got)
		}
		time.Sleep(lifetime - maxKeptAge - time.Millisecond)
		if got := list(); !strings.Contains(got, "am_b") {
			t.Errorf("before the cards end: %s", got)
		}
		time.Sleep(time.Millisecond) // am_b ends, and the page is younger than maxKeptAge
		if got := list(); strings.Contains(got, "am_b") {
			t.Errorf("after a card has ended: %s", got)
		}
	})
}

// TestPageTags: two pages have the same entity tag only if they have the same bytes, also at another instance.
func TestPageTags(t *testing.T) {
	w := newWorld(t)
	other := newWorldOver(t, w.store)
	tags, bodies := map[string]string{}, map[string]string{} // of each body, and of each tag
	look := func() {
		t.Helper()
		for _, query := range []string{"", "?limit=1", "?limit=2", "?q=agent", "?capability=scheduling", "?q=nothing"} {
			for _, at := range []*world{w, other} {
				got := at.do("GET", "/v1/agents"+query, "")
				body, tag := got.Body.String(), got.Header().Get("Etag")
				if known, ok := tags[body]; ok && known != tag {
					t.Errorf("%s has the tags %s and %s", body, known, tag)
				}
				if known, ok := bodies[tag]; ok && known != body {
					t.Errorf("%s and %s have the same tag", known, body)
				}
				tags[body], bodies[tag] = tag, body
			}
		}
	}
	look()
	for i := range 3 {
		w.register(alice, testCard(fmt.Sprintf("am_%d", i)))
		other.reg.pages.Purge()
		look()
	}
	card, err := w.store.Cards().Get(t.Context(), "am_1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	meta, err := listing.ParseMeta(card)
	if err != nil {
		t.Fatal(err)
	}
	meta.AddProbe(true, time.Now())
	card.Meta = meta.Encode()
	if _, err := w.store.Cards().Put(t.Context(), store.PutCard{Card: card, IfRev: card.Rev, Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []*world{w, other} {
		at.reg.pages.Purge()
	}
	before := len(bodies)
	if look(); len(bodies) == before {
		t.Error("a new verification changes no page")
	}
}

func TestFewSmallPagesAreKept(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a"))
	for i := range 2 * cachedPages {
		w.do("GET", fmt.Sprintf("/v1/agents?limit=20&x=%d", i), "")
	}
	w.do("GET", "/v1/agents?x="+strings.Repeat("x", maxKeptPage), "")
	total := 0
	for _, query := range w.reg.pages.Keys() {
		p, _ := w.reg.pages.Peek(query)
		total += len(query) + p.Len()
	}
	if w.reg.pages.Len() != cachedPages || total > cachedPages*maxKeptPage {
		t.Errorf("%d pages of %d bytes are kept", w.reg.pages.Len(), total)
	}
}

func TestSlowReaderBringsNothingBack(t *testing.T) {
	vs := newViewCache(4)
	gen := vs.generation()
	vs.drop("am_a") // a write between the slow reader's read and its add
	vs.add("am_a", &cardView{rev: store.Rev(1)}, gen)
	if _, ok := vs.byID.Get("am_a"); ok {
		t.Error("what a write dropped is kept again")
	}
	vs.add("am_a", &cardView{rev: store.Rev(2)}, vs.generation())
	if _, ok := vs.byID.Get("am_a"); !ok {
		t.Error("nothing is kept at all")
	}
}

func TestLargeCardsAreNotKept(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a", text("x", strings.Repeat("x", maxKeptBody))))
	w.do("GET", "/v1/agents/am_a", "")
	v, ok := w.reg.views.byID.Get("am_a")
	if !ok || v.body != nil {
		t.Errorf("view %v, body kept: %v", ok, v != nil && v.body != nil)
	}
	if got := w.do("GET", "/v1/agents/am_a", ""); got.Body.Len() < maxKeptBody {
		t.Errorf("the second answer has %d bytes", got.Body.Len())
	}
}

func TestReadersBesideAWriter(t *testing.T) {
	w := newWorld(t)
	w.register(alice, testCard("am_a", text("name", "0")))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					w.do("GET", "/v1/agents/am_a", "")
				}
			}
		})
	}
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		want(t, w.do("PUT", "/v1/agents/am_a", string(testCard("am_a", text("name", name)).JSON()), withBearer(alice)...), 200, "")
		if got := w.do("GET", "/v1/agents/am_a", "").Body.String(); !strings.Contains(got, `"name":"`+name+`"`) {
			t.Fatalf("read after write of %s: %s", name, got)
		}
	}
	close(stop)
	wg.Wait()
}
