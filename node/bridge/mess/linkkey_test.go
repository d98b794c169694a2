package mess

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

func (p *meshNode) linkReaches(state bridge.LinkState) bridge.LinkStatus {
	p.t.Helper()
	eventually(p.t.(*testing.T), "a link that is "+string(state), func() bool { return p.bridge.Links()[0].State == state })
	return p.bridge.Links()[0]
}

// TestLinkRegistersItself: a link without a key registers by itself, stores the key, reports that, and works. After a
// restart it still has the key.
func TestLinkRegistersItself(t *testing.T) {
	eachPublicServer(t, func(t *testing.T, begin func(func(*Config)) *publicLink) {
		w := begin(func(c *Config) { delete(c.Tokens, "town") })
		w.home.linkReaches(bridge.LinkUp)
		here, there := w.ask("water")
		me := w.thread(there).GetStr("requestor_id")
		if !strings.HasPrefix(me, "agentmesh-") {
			t.Errorf("there we are %q", me)
		}
		w.set("bob", there, thread.Claimed, "")
		w.set("bob", there, thread.Completed, result("wet"))
		w.home.waitStatus(here, thread.Completed)
		if n := w.home.countTitles("mess", "registered"); n != 1 {
			t.Errorf("%d notices of the registration", n)
		}
		again := newLink(w.home.bridge.links.All()[0].cfg)
		if err := again.remote.probe(t.Context()); err != nil || again.remote.self(t.Context()) != me {
			t.Errorf("after a start we are %q, %v", again.remote.self(t.Context()), err)
		}
		_, v := w.call("bob", http.MethodGet, "executors", "")
		if list, _ := v.Get("executors"); w.server == nil && list.Len() != 4 {
			t.Errorf("there are %s", list.JSON())
		}
		if w.server != nil && len(w.server.keys) != 4 {
			t.Errorf("there are %d keys", len(w.server.keys))
		}
	})
}

// TestLinkCannotRegister: an error that keeps a link from registering says what to do about it, and nothing is tried
// until then.
func TestLinkCannotRegister(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*bridge.Link)
		says   []string
	}{
		"the name is taken":    {func(l *bridge.Link) { l.Options = map[string]string{"as": "bob"} }, []string{"bob", "options.as", "token_file"}},
		"no exchange is named": {func(l *bridge.Link) { l.Exchange = "" }, []string{"links[].exchange"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &publicServer{keys: map[string][2]string{}}
			w := newPublicLink(t, s, serve(t, s), func(c *Config) {
				delete(c.Tokens, "town")
				tt.change(&c.Links[0])
			})
			status := w.home.linkReaches(bridge.LinkDown)
			for _, text := range tt.says {
				if !strings.Contains(status.Error, text) {
					t.Errorf("it says %q and nothing of %s", status.Error, text)
				}
			}
			if !status.Retry.IsZero() {
				t.Errorf("it is tried again at %v", status.Retry)
			}
		})
	}
}

// TestForgottenLinkRegistersAgain: if an exchange has forgotten the key of a link, the link registers again, once.
func TestForgottenLinkRegistersAgain(t *testing.T) {
	t.Parallel() // it mostly waits
	s := &publicServer{keys: map[string][2]string{}}
	w := newPublicLink(t, s, serve(t, s), func(c *Config) {
		delete(c.Tokens, "town")
		c.Links[0].Options = map[string]string{"as": "home"}
	})
	w.home.linkReaches(bridge.LinkUp)
	s.mu.Lock()
	s.keys = map[string][2]string{}
	s.mu.Unlock()
	w.wakePoll()
	eventually(t, "the second registration", func() bool { w.wakePoll(); return w.home.countTitles("mess", "registered") == 2 })
	w.home.linkReaches(bridge.LinkUp)
}

// TestLinkWaitsForApproval: a link waits for an exchange that approves registrations, and so do its messages; the
// exchange id is the one that the server names.
func TestLinkWaitsForApproval(t *testing.T) {
	t.Parallel() // it mostly waits
	away := newHTTPLab(t, func(c *exchange.Config) { c.Registration = "approval" })
	home := newMeshNode(t, meshtest.New(t), "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Links = []bridge.Link{{Name: "garden", Kind: Kind, URL: away.srv.URL, Exchange: "home", Options: map[string]string{"as": "neighbour"}}}
	})
	eventually(t, "that the link waits", func() bool {
		s := home.bridge.Links()[0]
		return s.State == bridge.LinkConnecting && strings.Contains(s.Error, "approve")
	})
	remote := home.bridge.links.All()[0].remote
	if _, err := remote.create(t.Context(), "", wire.Obj(wire.TextField("intent", "look"))); !isRetry(err) {
		t.Errorf("a request before the approval: %v", err)
	}
	if err := remote.post(t.Context(), "", "2026-02-01-001", mustParse(t, "- note: {text: hello}")); !isRetry(err) {
		t.Errorf("a message before the approval: %v", err)
	}
	if err := away.Executors.Admit(t.Context(), "neighbour", true, nil); err != nil {
		t.Fatal(err)
	}
	home.bridge.links.All()[0].wakePoll()
	home.linkReaches(bridge.LinkUp)
}

type refusingRemote struct {
	*listRemote
	mu          sync.Mutex
	polls, said int
	err         error
}

// answer makes all later calls end with err.
func (r *refusingRemote) answer(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// count adds a call to a counter and returns the error of the call.
func (r *refusingRemote) count(n *int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
	return r.err
}

func (r *refusingRemote) list(context.Context) ([]remoteThread, error) { return nil, r.count(&r.polls) }

func (r *refusingRemote) probe(context.Context) error { return r.count(new(int)) }

func (r *refusingRemote) create(context.Context, string, wire.Value) (string, error) {
	return "", r.count(&r.said)
}

// TestUnreachable: the error of a failed call names its cause.
func TestUnreachable(t *testing.T) {
	out := client.NewHTTP(client.HTTPConfig{Local: true})
	defer out.Close()
	r := &restRemote{http: out}
	if _, err := r.roundTrip(t.Context(), "GET", "http://127.0.0.1:1/", nil, http.Header{}, 100); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a call to a closed port: %v", err)
	}
}

// reachedMesh records what the link reports as reachable again.
type reachedMesh struct {
	bridge.Mesh
	reached []string
}

func (m *reachedMesh) Reachable(a bridge.Address) { m.reached = append(m.reached, a.String()) }

// TestDownLinkIsQuiet: a link that is down tries nothing until the owner acts; it once went on polling. Messages await
// the link, which reports that it works again.
func TestDownLinkIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, remote, _ := newListRemote(t)
		r := &refusingRemote{listRemote: remote, err: &client.SendError{Status: http.StatusUnauthorized}}
		l.remote = r
		mesh := reachedMesh{Mesh: l.cfg.Mesh}
		l.cfg.Mesh = &mesh
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Run(ctx)
		time.Sleep(time.Hour)
		l.wakePoll()
		synctest.Wait()
		status := l.Status()
		if status.State != bridge.LinkDown || !status.Retry.IsZero() || r.polls != 1 {
			t.Errorf("after an hour the link is %+v with %d polls", status, r.polls)
		}
		request := thread.Block{{Type: "request", Body: wire.Obj(wire.TextField("intent", "look"))}}
		m := wire.Message{Conversation: "conv_ours", Payload: wire.Obj(wire.Field("mess", request.Tree()))}
		err := l.Deliver(ctx, bridge.Delivery{ID: "a", Address: l.Address().String(), Message: m})
		if _, refused := refusalReason(err); refused || r.said != 0 || !goldentest.Refuses(t, "deliver", err) {
			t.Errorf("a message is tried %d times: %v", r.said, err)
		}
		if failed, ok := errors.AsType[*client.SendError](err); !ok || failed.Awaits != "mess:garden/" || len(mesh.reached) > 0 {
			t.Errorf("a message over a link that is down: %+v, want it to await the link; %v can be reached", err, mesh.reached)
		}
		if err := l.Test(ctx); err == nil {
			t.Error("the test says that it works")
		}
		if synctest.Wait(); r.polls != 1 {
			t.Errorf("%d polls after a test that failed", r.polls)
		}
		r.answer(nil)
		if err := l.Test(ctx); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if state := l.Status().State; state != bridge.LinkUp {
			t.Errorf("after a test that worked it is %s", state)
		}
		r.answer(&client.SendError{Retry: true}) // no answer
		time.Sleep(time.Minute)
		err = l.Deliver(ctx, bridge.Delivery{ID: "a", Address: l.Address().String(), Message: m})
		if failed, ok := errors.AsType[*client.SendError](err); !ok || failed.Awaits != "mess:garden/" {
			t.Errorf("a message to an exchange that does not answer: %+v, want it to await the link", err)
		}
		r.answer(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"mess:garden/", "mess:garden/"}; !slices.Equal(mesh.reached, want) {
			t.Errorf("%v can be reached, want %v", mesh.reached, want)
		}
		time.Sleep(time.Minute)
		if synctest.Wait(); r.polls < 10 {
			t.Errorf("%d polls in a minute", r.polls)
		}
		cancel()
		synctest.Wait()
	})
}

// TestUselessRegistrationsEnd: a server that accepts registrations but no key is not asked forever: the link registers
// once more and is then down, even if the server fails in between.
func TestUselessRegistrationsEnd(t *testing.T) {
	t.Parallel() // it mostly waits
	for name, fails := range map[string]bool{"refuses": false, "refuses and fails in turn": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &publicServer{keys: map[string][2]string{}}
			var registered, calls atomic.Int32
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/register"):
					registered.Add(1)
					s.mu.Lock()
					maps.DeleteFunc(s.keys, func(_ string, who [2]string) bool { return strings.HasPrefix(who[1], "agentmesh-") }) // nor the name
					s.mu.Unlock()
				case fails && calls.Add(1)%2 == 0:
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				default:
					r.Header.Set("Authorization", "Bearer mess_x_unknown")
				}
				s.ServeHTTP(w, r)
			}))
			w := newPublicLink(t, s, srv, func(c *Config) { delete(c.Tokens, "town") })
			eventually(t, "the end", func() bool {
				w.wakePoll()
				return w.home.bridge.Links()[0].State == bridge.LinkDown || registered.Load() > 20
			})
			if n := registered.Load() - 3; n != 2 { // three registrations are for the test itself
				t.Errorf("the link registered %d times", n)
			}
		})
	}
}
