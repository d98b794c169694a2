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

// deaf is a way to a foreign exchange that loses answers.
type deaf struct {
	to   atomic.Pointer[http.Handler]
	mu   sync.Mutex
	lose map[string]int    // by method: so many answers to come
	keys map[string]string // of calls that came: once → method and path
}

// newDeaf is newAbroad through such a way.
func newDeaf(t *testing.T) (*abroad, *deaf) {
	t.Helper()
	d := &deaf{lose: map[string]int{}, keys: map[string]string{}}
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	a := newAbroad(t, func(c *Config) { c.Links[0].URL = srv.URL })
	d.to.Store(&a.srv.Config.Handler)
	return a, d
}

func (d *deaf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := d.to.Load()
	if to == nil {
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return
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

func (d *deaf) loseNext(method string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lose[method]++
}

// An answer that is lost on the way is no refusal: the same is said again under the same name.
func TestLostAnswerThroughALink(t *testing.T) {
	a, d := newDeaf(t)
	here, there := a.ask("{id: water, intent: water the roses}")
	a.set(there, `{"status":"needs_input","message":"how much?"}`)
	a.home.reaches(here, thread.NeedsInput)
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
	a.home.reaches(here, thread.Completed)
	if n := a.home.noticesOf("mess", "asks nothing") + a.home.noticesOf("mess", "refused"); n != 0 {
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

// A request without an id is one thread, although the answer to the first try is lost.
func TestLostAnswerToARequestThroughALink(t *testing.T) {
	a, d := newDeaf(t)
	l := a.home.bridge.links[0]
	payload := wire.Obj(wire.TextField("action", "ask"), wire.TextField("question", "is the door open?"))
	delivery := func(id string) bridge.Delivery {
		m := wire.Message{Payload: payload, Conversation: wire.ConversationID("conv_" + id)}
		return bridge.Delivery{ID: id, Address: l.Address().String(), Message: m}
	}
	d.loseNext(http.MethodPost)
	// Over a connection that was used before, net/http itself sends again what has a name: then this one comes.
	_ = l.Deliver(t.Context(), delivery("a"))
	for _, id := range []string{"a", "b"} { // the second says the same, and is another
		if err := l.Deliver(t.Context(), delivery(id)); err != nil {
			t.Fatal(err)
		}
	}
	list, _ := a.want(200, a.us, "GET", "requests", "").Get("threads")
	if list.Len() != 2 {
		t.Errorf("%d threads, want 2", list.Len())
	}
}

// What the owner asks for there under a name is asked for once, and says the second time what came of it.
func TestRequestForALinkSentAgain(t *testing.T) {
	a := newAbroad(t, nil)
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
