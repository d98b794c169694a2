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
	"github.com/agentmesh/agentmesh/node/owner"
)

// foreignLink is a foreign exchange, and a node with a link to it.
type foreignLink struct {
	*httpLab
	home *meshNode
	us   string // our key there
	bob  string // the key of an executor
	t    *testing.T

	mu        sync.Mutex
	held      chan struct{} // while it is open, the GET calls of the link to URLs that contain path wait
	path      string
	lists     int // number of lists that the link has got
	conflicts int // number of calls of the link that were answered with 409
	reading   int // GET calls of the link that are being answered
}

// conflictCounter counts the answers with 409.
type conflictCounter struct {
	http.ResponseWriter
	a *foreignLink
}

func (c conflictCounter) WriteHeader(status int) {
	if status == http.StatusConflict {
		c.a.mu.Lock()
		c.a.conflicts++
		c.a.mu.Unlock()
	}
	c.ResponseWriter.WriteHeader(status)
}

func newForeignLink(t *testing.T, change func(*Config)) *foreignLink {
	t.Helper()
	a := &foreignLink{httpLab: newHTTPLab(t, nil), t: t}
	a.us = a.register("us")
	a.bob = a.register("bob")
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		held, path, isRead := a.held, a.path, r.Method == http.MethodGet
		isHeld := held != nil && isRead && strings.Contains(r.URL.Path, path)
		if isRead && !isHeld {
			a.reading++
		}
		a.mu.Unlock()
		if isHeld {
			<-held
		}
		a.srv.Config.Handler.ServeHTTP(conflictCounter{w, a}, r)
		if isRead && !isHeld {
			a.mu.Lock()
			a.reading--
			a.mu.Unlock()
		}
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/requests") {
			a.mu.Lock()
			a.lists++
			a.mu.Unlock()
		}
	}))
	t.Cleanup(gate.Close)
	a.home = newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Links = []bridge.Link{{Name: "garden", Kind: Kind, URL: gate.URL}}
		c.Tokens = map[string]client.Credential{"garden": client.Credential(a.us)}
		if change != nil {
			change(c)
		}
	})
	return a
}

// hideLink hides changes there from the link until the test calls see. What was sent is delivered before: later messages would
// wait for it.
func (a *foreignLink) hideLink() (see func()) {
	eventually(a.t, "the delivery", func() bool {
		queued, _, err := a.home.node.Outbox(a.t.Context(), owner.SendQueued, "", 10)
		return err == nil && len(queued) == 0
	})
	return a.hold("")
}

// hold holds the GET calls of the link to URLs that contain path until the test calls see. It returns when no earlier call is
// being answered, which could still show a later change.
func (a *foreignLink) hold(path string) (see func()) {
	held := make(chan struct{})
	a.mu.Lock()
	a.held, a.path = held, path
	a.mu.Unlock()
	eventually(a.t, "no call of the link", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.reading == 0
	})
	see = sync.OnceFunc(func() {
		a.mu.Lock()
		a.held = nil
		a.mu.Unlock()
		close(held)
		a.wakePoll()
	})
	a.t.Cleanup(see)
	return see
}

func (a *foreignLink) wakePoll() { a.home.bridge.links.All()[0].wakePoll() }

func (a *foreignLink) ask(body string) (here, there string) {
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

// set sets a status there as bob, without a message.
func (a *foreignLink) set(there, body string) {
	a.t.Helper()
	a.want(200, a.bob, "PATCH", "requests/"+there, body)
	a.wakePoll()
}

// TestRefusalEndsNoConversation: a final refusal of a message does not end the conversation: later news of the thread
// is still received, and the owner gets a notice.
func TestRefusalEndsNoConversation(t *testing.T) {
	a := newForeignLink(t, nil)
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"status":"needs_input","message":"how much?"}`)
	a.home.waitStatus(here, thread.NeedsInput)
	see := a.hideLink()
	a.set(there, `{"status":"in_progress","message":"I found the can"}`)
	a.home.do(thread.OwnerID, "- reply: {re: water, answers: {amount: a lot}}")
	eventually(t, "the notice", func() bool { return a.home.countNotices("mess", "no question is open") == 1 })
	see()
	a.set(there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["wet"]}}]}`)
	a.home.waitStatus(here, thread.Completed)
	eventually(t, "the result", func() bool { return strings.Contains(a.home.allText(here), "wet") })
}

// TestLoneResponseCompletesThroughALink: a response alone completes a thread there (MESS-26), and here.
func TestLoneResponseCompletesThroughALink(t *testing.T) {
	a := newForeignLink(t, nil)
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"status":"claimed"}`)
	a.home.waitStatus(here, thread.Claimed)
	a.do("bob", "- response: {re: "+there+", content: [wet]}")
	a.wakePoll()
	a.home.waitStatus(here, thread.Completed)
	eventually(t, "the result", func() bool { return strings.Contains(a.home.allText(here), "wet") })
	a.do("bob", "- response: {re: "+there+", content: [and weeded]}")
	a.wakePoll()
	eventually(t, "the late response", func() bool { return strings.Contains(a.home.allText(here), "weeded") })
}

// TestEndsThroughALink: a thread that ends there without a message of an executor ends here too.
func TestEndsThroughALink(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		claimed bool
		end     func(a *foreignLink, there string)
		want    thread.Code
		why     string
	}{
		"expired unclaimed": {"{intent: x, needed_by: \"" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + "\"}", false, func(a *foreignLink, there string) {
			a.do(thread.OwnerID, "- status: {re: "+there+", code: expired, expired_at: \"2026-01-01T00:00:00Z\"}")
		}, thread.Expired, "expired"},
		"declined by the owner": {"{intent: x}", false, func(a *foreignLink, there string) {
			a.do(thread.OwnerID, "- status: {re: "+there+", code: declined, reason: no}")
		}, thread.Declined, "no"},
		"cancelled by their owner": {"{intent: x}", true, func(a *foreignLink, there string) {
			a.do(thread.OwnerID, "- cancel: {re: "+there+", reason: we move out}")
		}, thread.Cancelled, "we move out"},
		"superseded": {"{intent: x}", true, func(a *foreignLink, there string) {
			a.do("bob", "- suggestion: {id: s1, type: split, re: "+there+", proposed: [{intent: y}, {intent: z}], reason: two jobs}")
			a.do("us", "- reply: {re: s1, accept: true}")
		}, thread.Superseded, "superseded"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newForeignLink(t, nil)
			here, there := a.ask(c.request)
			if c.claimed {
				a.set(there, `{"status":"claimed"}`)
				a.home.waitStatus(here, thread.Claimed)
			}
			c.end(a, there)
			a.wakePoll()
			a.home.waitStatus(here, c.want)
			if text := a.home.allText(here); !strings.Contains(text, c.why) {
				t.Errorf("it says %s", text)
			}
		})
	}
}

// TestOneNoOfSeveralThroughALink: a decline by one of several executors there does not decline for the exchange.
func TestOneNoOfSeveralThroughALink(t *testing.T) {
	a := newForeignLink(t, nil)
	carol := a.register("carol")
	here, there := a.ask("{intent: x}")
	a.want(200, carol, "PATCH", "requests/"+there, `{"status":"declined"}`)
	a.wakePoll()
	a.set(there, `{"status":"claimed"}`)
	a.home.waitStatus(here, thread.Claimed)
}

// TestEndsThroughTheMesh: the exchange of an agent ends a thread that was sent to it, and it ends here.
func TestEndsThroughTheMesh(t *testing.T) {
	const result = "the fridge is gone"
	home, away := pair(t, acl.Open)
	ref := home.request("client", "{intent: look into the fridge}")
	there := away.waitMeshThread()
	away.status("bob", there, "claimed")
	home.waitStatus(ref, thread.Claimed)
	away.do(thread.OwnerID, "- cancel: {re: "+there+", reason: "+result+"}")
	home.waitStatus(ref, thread.Cancelled)
	if text := home.allText(ref); !strings.Contains(text, result) {
		t.Errorf("it says %s", text)
	}
}

// TestSameEndOnBothSides: if a request expires here and there at the same time, the owner gets no notice of a conflict.
func TestSameEndOnBothSides(t *testing.T) {
	a := newForeignLink(t, nil)
	here, there := a.ask("{intent: x, needed_by: \"" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + "\"}")
	see := a.hideLink()
	const expired = ", code: expired, expired_at: \"2026-01-01T00:00:00Z\"}"
	a.do(thread.OwnerID, "- status: {re: "+there+expired)
	a.home.do(thread.OwnerID, "- status: {re: "+here+expired)
	eventually(t, "the cancel", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.conflicts > 0
	})
	see()
	eventually(t, "what the exchange says", func() bool { return strings.Count(a.home.allText(here), "expired_at") == 2 })
	if told, refused := a.home.countNotices("mess", "the thread has the message"), a.home.countNotices("mess", "the thread is expired"); told+refused != 0 {
		t.Errorf("%d notices of what the exchange says, and %d of a refused cancel", told, refused)
	}
}
