package mess

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// lossyProxy is a proxy to a foreign exchange that loses answers.
type lossyProxy struct {
	to   atomic.Pointer[http.Handler]
	mu   sync.Mutex
	lose map[string]int    // by method: how many of the next answers are lost
	keys map[string]string // Idempotency-Key → method and path

	lists atomic.Int64 // requests for the list of threads
}

// newLossyProxy is newForeignLink behind such a proxy.
func newLossyProxy(t *testing.T) (*foreignLink, *lossyProxy) {
	t.Helper()
	d := &lossyProxy{lose: map[string]int{}, keys: map[string]string{}}
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	a := newForeignLink(t, func(c *Config) { c.Links[0].URL = srv.URL })
	d.to.Store(&a.srv.Config.Handler)
	return a, d
}

func (d *lossyProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := d.to.Load()
	if to == nil {
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return
	}
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/requests") {
		d.lists.Add(1)
	}
	d.mu.Lock()
	lost := d.lose[r.Method] > 0
	if lost {
		d.lose[r.Method]--
	}
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		d.keys[key] += r.Method + " "
	}
	d.mu.Unlock()
	if !lost {
		(*to).ServeHTTP(w, r)
		return
	}
	(*to).ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler) // the connection ends
}

func (d *lossyProxy) loseNext(method string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lose[method]++
}

// TestLostAnswerThroughALink: a lost answer is not a refusal: the same call is repeated with the same Idempotency-Key.
func TestLostAnswerThroughALink(t *testing.T) {
	a, d := newLossyProxy(t)
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"status":"needs_input","message":"how much?"}`)
	a.home.waitStatus(here, thread.NeedsInput)
	d.loseNext(http.MethodPatch)
	a.home.do(thread.OwnerID, "- reply: {re: water, answers: {amount: a lot}}")
	said := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		most := 0
		for _, calls := range d.keys {
			most = max(most, strings.Count(calls, "PATCH"))
		}
		return most
	}
	eventually(t, "the second try", func() bool { return said() == 2 })
	a.set(there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["wet"]}}]}`)
	a.home.waitStatus(here, thread.Completed)
	if n := a.home.countNotices("mess", "asks nothing") + a.home.countNotices("mess", "refused"); n != 0 {
		t.Error("the owner is told of a refusal that was none")
	}
	answers := 0
	for _, m := range mustMessages(t, a.Exchange, there) {
		answers += strings.Count(string(m.Mess.JSON()), "a lot")
	}
	if answers != 1 {
		t.Errorf("it was said %d times there", answers)
	}
}

// TestLostAnswerToARequestThroughALink: a request without an id becomes one thread, even if the answer to the first
// attempt is lost.
func TestLostAnswerToARequestThroughALink(t *testing.T) {
	a, d := newLossyProxy(t)
	l := a.home.bridge.links.All()[0]
	payload := wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", "is the door open?"))
	delivery := func(id string) bridge.Delivery {
		m := wire.Message{Payload: payload, Conversation: wire.ConversationID("conv_" + id)}
		return bridge.Delivery{ID: id, Address: l.Address().String(), Message: m}
	}
	d.loseNext(http.MethodPost)
	// On a reused connection, net/http itself repeats a call with an Idempotency-Key: then that repetition arrives.
	_ = l.Deliver(t.Context(), delivery("a"))
	for _, id := range []string{"a", "b"} { // the second has the same content and is another request
		if err := l.Deliver(t.Context(), delivery(id)); err != nil {
			t.Fatal(err)
		}
	}
	list, _ := a.want(200, a.us, "GET", "requests", "").Get("threads")
	if list.Len() != 2 {
		t.Errorf("%d threads, want 2", list.Len())
	}
}

// TestLostAnswerToOurFirstRequest: if the answer to our first request is lost while our name at the exchange is unknown,
// a poll does not take the request for one of somebody else.
func TestLostAnswerToOurFirstRequest(t *testing.T) {
	a, d := newLossyProxy(t)
	l := a.home.bridge.links.All()[0]
	payload := wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", "is the door open?"))
	deliver := func() error {
		m := wire.Message{Payload: payload, Conversation: "conv_a"}
		return l.Deliver(t.Context(), bridge.Delivery{ID: "a", Address: l.Address().String(), Message: m})
	}
	for range 4 { // on each reused connection, net/http itself repeats a call with an Idempotency-Key
		d.loseNext(http.MethodPost)
	}
	if deliver() == nil {
		t.Fatal("no answer was lost")
	}
	list, _ := a.want(200, a.us, "GET", "requests", "").Get("threads")
	there := list.At(0).GetStr("ref")
	first := d.lists.Load() + 1
	eventually(t, "a whole poll", func() bool {
		l.wakePoll()
		return d.lists.Load() > first
	})
	if k, found, err := l.load(t.Context(), there); found || err != nil {
		t.Errorf("the link takes our request for one of somebody else: %+v, %v", k, err)
	}
	eventually(t, "the next attempt", func() bool { return deliver() == nil })
	if k, _, err := l.load(t.Context(), there); !k.Mine || err != nil {
		t.Errorf("after the next attempt, the thread is %+v, %v", k, err)
	}
}

// TestRequestForALinkSentAgain: a call of the owner with an Idempotency-Key sends its request once, and its repetition
// gets the same answer.
func TestRequestForALinkSentAgain(t *testing.T) {
	a := newForeignLink(t, nil)
	var first string
	for range 2 {
		code, v := a.owner("send/garden", `[{"request":{"intent":"fix the tap"}}]`, "Idempotency-Key", "one")
		list, _ := v.Get("threads")
		ref := list.At(0).GetStr("ref")
		if code != http.StatusCreated || list.Len() != 1 || first != "" && ref != first || !strings.Contains(string(v.JSON()), `"sent":true`) {
			t.Fatalf("%d %s", code, v.JSON())
		}
		first = ref
	}
	if code, v := a.owner("send/garden", `[{"request":{"intent":"fix the door"}}]`, "Idempotency-Key", "one"); code != http.StatusUnprocessableEntity {
		t.Errorf("another request under that name: %d %s", code, v.JSON())
	}
	if code, v := a.owner("send/garden", `[{"request":{"intent":"fix the tap"}}]`, "Idempotency-Key", "two"); code != http.StatusCreated {
		t.Errorf("under another name: %d %s", code, v.JSON())
	}
	eventually(t, "two requests there", func() bool {
		list, _ := a.want(200, a.bob, "GET", "requests", "").Get("threads")
		return list.Len() == 2
	})
}
