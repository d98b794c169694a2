package mess

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// abroad is a foreign exchange, and a node with a link to it.
type abroad struct {
	*site
	home *party
	us   string // our key there
	bob  string // that of an executor
	t    *testing.T

	mu   sync.Mutex
	held chan struct{} // open: what the link asks waits
}

func newAbroad(t *testing.T, change func(*Config)) *abroad {
	t.Helper()
	a := &abroad{site: newSite(t, nil), t: t}
	a.us = a.register("us")
	a.bob = a.register("bob")
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		held := a.held
		a.mu.Unlock()
		if held != nil && r.Method == http.MethodGet {
			<-held
		}
		a.srv.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(gate.Close)
	a.home = newParty(t, meshtest.New(t), "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Links = []bridge.Link{{Name: "garden", Kind: Kind, URL: gate.URL}}
		c.Tokens = map[string]client.Credential{"garden": client.Credential(a.us)}
		if change != nil {
			change(c)
		}
	})
	return a
}

// blind keeps what happens there from the link until the test calls what it returns.
func (a *abroad) blind() (see func()) {
	held := make(chan struct{})
	a.mu.Lock()
	a.held = held
	a.mu.Unlock()
	see = sync.OnceFunc(func() {
		a.mu.Lock()
		a.held = nil
		a.mu.Unlock()
		close(held)
		a.poke()
	})
	a.t.Cleanup(see)
	return see
}

func (a *abroad) poke() { a.home.bridge.links[0].poke() }

// ask sends a request of our owner's there.
func (a *abroad) ask(body string) (here, there string) {
	a.t.Helper()
	here = a.home.request(thread.OwnerID, body)
	address := bridge.Address{Kind: Kind, Link: "garden", Peer: thread.ExchangeID}
	if err := a.home.bridge.offerTo(a.t.Context(), here, string(address.Pseudonym()), address.String(), nil); err != nil {
		a.t.Fatal(err)
	}
	eventually(a.t, "the request over there", func() bool {
		list, _ := a.want(200, a.bob, "GET", "requests", "").Get("threads")
		if list.Len() == 1 {
			there = list.At(0).GetStr("ref")
		}
		return there != ""
	})
	return here, there
}

// set sets a status there as bob, without a word.
func (a *abroad) set(there, body string) {
	a.t.Helper()
	a.want(200, a.bob, "PATCH", "requests/"+there, body)
	a.poke()
}

// What the other side refuses for good ends no conversation: what becomes of the thread is heard all the same, and the
// owner is told.
func TestRefusalEndsNoConversation(t *testing.T) {
	a := newAbroad(t, nil)
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"status":"needs_input","message":"how much?"}`)
	a.home.reaches(here, thread.NeedsInput)
	see := a.blind()
	a.set(there, `{"status":"in_progress","message":"I found the can"}`)
	a.home.do(thread.OwnerID, "- reply: {re: water, answers: {amount: a lot}}")
	eventually(t, "the notice", func() bool { return a.home.noticesOf("mess", "asks nothing") == 1 })
	see()
	a.set(there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["wet"]}}]}`)
	a.home.reaches(here, thread.Completed)
	eventually(t, "the result", func() bool { return strings.Contains(a.home.said(here), "wet") })
}

// A response alone completes a thread there (MESS-26), and here.
func TestLoneResponseCompletesThroughALink(t *testing.T) {
	a := newAbroad(t, nil)
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"status":"claimed"}`)
	a.home.reaches(here, thread.Claimed)
	a.do("bob", "- response: {re: "+there+", content: [wet]}")
	a.poke()
	a.home.reaches(here, thread.Completed)
	eventually(t, "the result", func() bool { return strings.Contains(a.home.said(here), "wet") })
	a.do("bob", "- response: {re: "+there+", content: [and weeded]}")
	a.poke()
	eventually(t, "the late response", func() bool { return strings.Contains(a.home.said(here), "weeded") })
}

// What ends over there without anybody who works on it has a word for it ends here too.
func TestEndsThroughALink(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		claimed bool
		end     func(a *abroad, there string)
		want    thread.Code
		why     string
	}{
		"expired unclaimed": {"{intent: x, needed_by: \"" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + "\"}", false, func(a *abroad, there string) {
			a.do(thread.OwnerID, "- status: {re: "+there+", code: expired, expired_at: \"2026-01-01T00:00:00Z\"}")
		}, thread.Declined, "expired"}, // the directory lists nobody else
		"declined by the owner": {"{intent: x}", false, func(a *abroad, there string) {
			a.do(thread.OwnerID, "- status: {re: "+there+", code: declined, reason: no}")
		}, thread.Declined, "no"},
		"cancelled by their owner": {"{intent: x}", true, func(a *abroad, there string) {
			a.do(thread.OwnerID, "- cancel: {re: "+there+", reason: we move out}")
		}, thread.Cancelled, "we move out"},
		"superseded": {"{intent: x}", true, func(a *abroad, there string) {
			a.do("bob", "- suggestion: {id: s1, type: split, re: "+there+", proposed: [{intent: y}, {intent: z}], reason: two jobs}")
			a.do("us", "- reply: {re: s1, accept: true}")
		}, thread.Superseded, "superseded"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAbroad(t, nil)
			here, there := a.ask(c.request)
			if c.claimed {
				a.set(there, `{"status":"claimed"}`)
				a.home.reaches(here, thread.Claimed)
			}
			c.end(a, there)
			a.poke()
			a.home.reaches(here, c.want)
			if text := a.home.said(here); !strings.Contains(text, c.why) {
				t.Errorf("it says %s", text)
			}
		})
	}
}

// One executor of several who does not want to is not the exchange's no.
func TestOneNoOfSeveralThroughALink(t *testing.T) {
	a := newAbroad(t, nil)
	carol := a.register("carol")
	here, there := a.ask("{intent: x}")
	a.want(200, carol, "PATCH", "requests/"+there, `{"status":"declined"}`)
	a.poke()
	a.set(there, `{"status":"claimed"}`)
	a.home.reaches(here, thread.Claimed)
}

// The exchange of an agent ends a thread that was sent to it: it ends here.
func TestEndsThroughTheMesh(t *testing.T) {
	home, away := pair(t, acl.Open)
	ref := home.request("client", "{intent: look into the fridge}")
	there := away.theirs()
	away.status("bob", there, "claimed")
	home.reaches(ref, thread.Claimed)
	away.do(thread.OwnerID, "- cancel: {re: "+there+", reason: the fridge is gone}")
	home.reaches(ref, thread.Cancelled)
	if text := home.said(ref); !strings.Contains(text, "the fridge is gone") {
		t.Errorf("it says %s", text)
	}
}
