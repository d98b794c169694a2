package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// forgetfulRelay is a relay that registers agents and can forget them all, as the public relay does when it restarts.
type forgetfulRelay struct {
	*fakeRelay
	mu       sync.Mutex
	token    string // the valid token
	taken    bool   // somebody else has the id
	deaf     bool   // it refuses even tokens that it just issued
	asked    int    // registrations
	refusals int    // connections with another token
}

func newForgetfulRelay(t *testing.T) *forgetfulRelay {
	f := &forgetfulRelay{fakeRelay: newFakeRelay(t)}
	accept := f.srv.Config.Handler
	f.srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch good := r.Header.Get("Authorization") == "Bearer "+f.token && !f.deaf; {
		case r.URL.Path == "/register" && f.taken:
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"error":"agent_id_taken","message":"x"}`)
		case r.URL.Path == "/register":
			f.asked++
			f.token = fmt.Sprintf("tok_%d", f.asked)
			fmt.Fprintf(w, `{"agent_id":"our-node","token":%q}`, f.token)
		case good:
			accept.ServeHTTP(w, r)
		default:
			f.refusals++
			http.Error(w, "{}", http.StatusUnauthorized)
		}
	})
	return f
}

// counts returns how many registrations and how many refused connections the relay had.
func (f *forgetfulRelay) counts() (asked, refusals int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked, f.refusals
}

func (f *forgetfulRelay) forget(edit func()) {
	f.mu.Lock()
	f.token = "tok_of nobody"
	edit()
	f.mu.Unlock()
	f.cut()
}

// link starts a link to the relay without a token from its owner.
func (f *forgetfulRelay) link(t *testing.T, options map[string]string) *testLink {
	t.Helper()
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	t.Cleanup(h.Close)
	l, err := New(Config{
		Link: bridge.Link{Name: "free", Kind: Kind, URL: f.url(), AgentID: "our-node", Options: options},
		Dir:  t.TempDir(), Mesh: bridgetest.Mesh{Receiver: &fakeNode{}}, Store: openStore(t), HTTP: h,
	})
	if err != nil {
		t.Fatal(err)
	}
	x := &testLink{link: l, relay: f.fakeRelay, t: t}
	x.link.keeper.First = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	x.waitFor(bridge.LinkUp)
	<-f.joined
	return x
}

// TestRelayForgets: a link whose relay restarted and forgot it registers again, with the same id and without the owner
// (AR-52).
func TestRelayForgets(t *testing.T) {
	f := newForgetfulRelay(t)
	x := f.link(t, nil)
	f.forget(func() {})
	select {
	case <-f.joined:
	case <-time.After(patience):
		t.Fatalf("the link does not come back: %+v", x.link.Status())
	}
	x.waitFor(bridge.LinkUp)
	if asked, _ := f.counts(); asked != 2 {
		t.Errorf("the link registered %d times, want 2", asked)
	}
	data, err := os.ReadFile(x.link.tokenFile())
	if err != nil || !strings.Contains(string(data), "tok_2") {
		t.Errorf("kept: %s, %v, want the new token", data, err)
	}
}

// TestDownLink: a link that cannot get another token is down. It stops asking, keeps its token, tells senders that it
// is down, and works again after a successful test (AR-52).
func TestDownLink(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options map[string]string
		edit    func(*forgetfulRelay)
		why     string
		kept    string // token in the file
	}{
		{"its id is taken", nil, func(f *forgetfulRelay) { f.taken = true }, "the id is taken", "tok_1"},
		{"the owner does not want it", map[string]string{optReregister: "false"}, func(*forgetfulRelay) {}, "refuses the token", "tok_1"},
		{"the new token is refused as well", nil, func(f *forgetfulRelay) { f.deaf = true }, "refuses the token", "tok_2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newForgetfulRelay(t)
			x := f.link(t, tt.options)
			f.forget(func() { tt.edit(f) })
			x.waitFor(bridge.LinkDown)
			s := x.link.Status()
			if !strings.Contains(s.Error, tt.why) || !s.Retry.IsZero() {
				t.Errorf("status = %+v, want %q and no retry", s, tt.why)
			}
			if data, err := os.ReadFile(x.link.tokenFile()); err != nil || !strings.Contains(string(data), tt.kept) {
				t.Errorf("kept: %s, %v, want %s", data, err, tt.kept)
			}
			_, err := x.Deliver(t.Context(), newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"hi"}}`))
			failed, ok := errors.AsType[*client.SendError](err)
			if !ok || !failed.Retry || !strings.Contains(err.Error(), "the link free is down: "+s.Error) {
				t.Errorf("Deliver() = %v, want it to wait and to say that the link is down", err)
			}
			asked, refusals := f.counts()
			const tests = 5
			for range tests {
				if err := x.link.Test(t.Context()); !errors.Is(err, errToken) {
					t.Fatalf("Test() = %v, want %v", err, errToken)
				}
			}
			if a, r := f.counts(); a != asked || r != refusals+tests {
				t.Errorf("the link keeps asking: %d registrations and %d connections, want none", a-asked, r-refusals-tests)
			}
			f.mu.Lock()
			f.taken, f.deaf, f.token = false, false, tt.kept
			f.mu.Unlock()
			if err := x.link.Test(t.Context()); err != nil {
				t.Fatalf("Test() = %v", err)
			}
			x.waitFor(bridge.LinkUp)
		})
	}
}

// TestTestEndsTheWait: a test that succeeds ends the minute for which a link waits after the relay limited it.
func TestTestEndsTheWait(t *testing.T) {
	x, _ := newLinkedNode(t, nil, Config{})
	x.relay.refuse(http.StatusTooManyRequests)
	x.relay.cut()
	for x.link.Status().Retry.Before(time.Now().Add(waitAfterRate / 2)) {
		<-time.After(time.Millisecond)
	}
	x.relay.refuse(0)
	begun := time.Now()
	if err := x.link.Test(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.waitFor(bridge.LinkUp)
	if took := time.Since(begun); took > waitAfterRate/2 {
		t.Errorf("the link was up %v after the test", took)
	}
}

// TestTestDuringConnect: a test of a link that is just connecting waits for the outcome. Two connections at the same
// time would end each other, and two registrations would leave the link without a valid token.
func TestTestDuringConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials, most := 0, 0
		l, err := New(Config{
			Link: bridge.Link{Name: "free", Kind: Kind, URL: "ws://127.0.0.1:1/arc"}, Dir: t.TempDir(), Token: "tok_x",
			Mesh: bridgetest.Mesh{Receiver: &fakeNode{}}, Store: openStore(t), HTTP: client.NewHTTP(client.HTTPConfig{Local: true}),
			Dial: func(context.Context, *url.URL) (net.Conn, error) {
				dials++
				most = max(most, dials)
				time.Sleep(time.Second)
				dials--
				return nil, errors.New("nobody is there")
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		if err := l.Test(ctx); err == nil || most != 1 {
			t.Errorf("Test() = %v, and %d connections were made at the same time, want one", err, most)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
