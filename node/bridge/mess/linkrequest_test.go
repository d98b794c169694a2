package mess

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// owner calls a route of the bridge for the owner at home.
func (a *foreignLink) owner(path, body string, header ...string) (int, wire.Value) {
	a.t.Helper()
	e := echo.New()
	owner.Mount(e.Group("/owner"), a.home.bridge.Operations()...)
	e.HTTPErrorHandler = func(err error, c echo.Context) { _ = a.home.bridge.server.WriteError(c, err) }
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(a.t.Context(), http.MethodPost, "/owner/mess/"+path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	e.ServeHTTP(w, r)
	v, err := wire.Parse(w.Body.Bytes())
	if err != nil {
		a.t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Code, v
}

// TestRequestForALinkAlone: a request for the exchange behind a link goes there and to nobody else. A request that
// waits for another one goes there when it may.
func TestRequestForALinkAlone(t *testing.T) {
	asked := make(chan []string, 10)
	a := newForeignLink(t, func(c *Config) {
		c.Mesh = directoryMesh{c.Mesh, func(q client.Query) ([]wire.Card, error) {
			asked <- q.Capabilities
			return []wire.Card{{ID: "am_somebodyelse"}}, nil
		}}
	})
	a.home.executor("here")
	a.executor("bob", "plumbing")
	if code, v := a.owner("send/nowhere", `[{"request":{"intent":"mow"}}]`); code != 404 {
		t.Errorf("a link that is not there: %d %s", code, v.JSON())
	}
	code, v := a.owner("send/garden", `[{"request":{"id":"a","intent":"fix the tap","requires":["plumbing"]}},{"request":{"id":"b","intent":"paint","constraints":{"depends_on":["a"]}}}]`)
	list, _ := v.Get("threads")
	if code != 201 || list.Len() != 2 {
		t.Fatalf("%d %s", code, v.JSON())
	}
	first, second := list.At(0).GetStr("ref"), list.At(1).GetStr("ref")
	if text := string(v.JSON()); !strings.Contains(text, `"sent":true`) || !strings.Contains(text, `"status":"waiting","sent":false`) {
		t.Errorf("it says %s", text)
	}
	a.home.refuse(404, "here", "- status: {re: "+second+", code: claimed}")
	if code, v := a.owner("send/"+second+"/garden", ""); code != 409 || !strings.Contains(string(v.JSON()), "waiting") {
		t.Errorf("what waits was sent: %d %s", code, v.JSON())
	}
	there := a.only("fix the tap")
	a.set(there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["done"]}}]}`)
	a.home.waitStatus(first, thread.Completed)
	a.home.waitStatus(second, thread.Received)
	a.wakePoll()
	a.set(a.only("paint"), `{"status":"claimed"}`)
	a.home.waitStatus(second, thread.Claimed)
	if len(asked) > 0 {
		t.Errorf("the directory was asked for %v", <-asked)
	}
	eventually(t, "nothing left to send", func() bool {
		page, err := a.home.store.Records().List(t.Context(), exchange.NSNotices, "", "", 10, time.Now())
		return err == nil && len(page.Records) == 0
	})
}

func (a *foreignLink) only(intent string) (there string) {
	a.t.Helper()
	eventually(a.t, intent+" over there", func() bool {
		list, _ := a.want(200, a.bob, "GET", "requests", "").Get("threads")
		for th := range list.Elems() {
			if th.GetStr("intent") == intent {
				there = th.GetStr("ref")
			}
		}
		return there != ""
	})
	return there
}

// TestRequestThatALinkRefuses: a request that the other side refuses is declined, with the reason.
func TestRequestThatALinkRefuses(t *testing.T) {
	s := &publicServer{keys: map[string][2]string{}, closed: "no requests before noon"}
	a := &foreignLink{home: newPublicLink(t, s, serve(t, s), nil).home, t: t}
	_, v := a.owner("send/town", `[{"request":{"intent":"fix the tap"}}]`)
	list, _ := v.Get("threads")
	ref := list.At(0).GetStr("ref")
	a.home.waitStatus(ref, thread.Declined)
	if text := a.home.allText(ref); !strings.Contains(text, s.closed) {
		t.Errorf("it says %s", text)
	}
}

// TestLateClaimThroughALink: two executors want the same foreign thread: the later one gets a notice, and its task
// goes.
func TestLateClaimThroughALink(t *testing.T) {
	a := newForeignLink(t, func(c *Config) { c.Links[0].Options = map[string]string{"as": "us"} })
	carol := a.register("carol")
	a.home.executor("here")
	there := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn"}`).GetStr("ref")
	a.wakePoll()
	here := a.home.waitMeshThread()
	see := a.hideLink()
	a.set(there, `{"status":"claimed"}`)
	a.home.status("here", here, "claimed")
	see()
	a.home.waitStatus(here, thread.Cancelled)
	eventually(t, "the notice", func() bool { return a.home.countNotices("mess", "does not show it any more") == 1 })
	if th := a.thread(there); th.Status != thread.Claimed || th.Holder != "bob" {
		t.Errorf("there it is %s by %s", th.Status, th.Holder)
	}
}

// TestUnsendableRequest: a request that the node refuses to send is canceled with the reason, and the others are sent.
func TestUnsendableRequest(t *testing.T) {
	l, _, _ := newListRemote(t)
	var refs []string
	for range 3 {
		res, err := l.x.Do(t.Context(), exchange.Owner("test"), mustParse(t, "- request: {intent: look}"),
			exchange.Options{Only: string(l.Address().Pseudonym())})
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, res.Created...)
	}
	var offered atomic.Int32
	l.cfg.Offer = func(ctx context.Context, ref, _, _ string, changes []store.Change) error {
		if ref == refs[1] {
			return wire.ErrPayload.At("a whole number")
		}
		offered.Add(1)
		return l.records.Apply(ctx, changes, time.Now())
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.x.Work.Run(ctx); close(ended) }()
	eventually(t, "nothing left to send", func() bool {
		page, err := l.records.List(ctx, exchange.NSNotices, "", "", 10, time.Now())
		return err == nil && len(page.Records) == 0
	})
	stop()
	<-ended
	if offered.Load() != 2 {
		t.Errorf("%d requests sent", offered.Load())
	}
	th, err := l.x.Read(t.Context(), refs[1], time.Now())
	if err != nil || th.Status != thread.Cancelled || !goldentest.Says(t, "note", th.History[len(th.History)-1].Note) {
		t.Errorf("the request is %+v, %v", th, err)
	}
}

// TestSameRequestOfTwoThroughALink: two of our requesters ask for the same under the same id. The exchange sees one
// requester, and would take the second request for a repetition of the first: each gets a thread there.
func TestSameRequestOfTwoThroughALink(t *testing.T) {
	dir := t.TempDir()
	for kind, change := range map[string]func(*Config){
		"rest": nil,
		"dir":  func(c *Config) { c.Links = []bridge.Link{{Name: "garden", Kind: Kind, Dir: dir}} },
	} {
		t.Run(kind, func(t *testing.T) {
			a := newForeignLink(t, change)
			var here []string
			for _, who := range []string{"alice", "zoe"} {
				a.home.executor(who)
				ref := a.home.request(who, "{id: milk, intent: buy milk}")
				if code, v := a.owner("send/"+ref+"/garden", ""); code != 200 {
					t.Fatalf("%d %s", code, v.JSON())
				}
				here = append(here, ref)
			}
			l := a.home.bridge.links.All()[0]
			there := map[string]string{}
			eventually(t, "both threads over there", func() bool {
				for _, ref := range here {
					to := l.pseudonym(thread.ExchangeID)
					k, err := exchange.ReadShared(t.Context(), l.records, to, a.home.thread(ref).Peers[to].Conv)
					if err == nil && k.There != "" {
						there[ref] = k.There
					}
				}
				return len(there) == 2
			})
			if there[here[0]] == there[here[1]] {
				t.Fatalf("both are %s", there[here[0]])
			}
		})
	}
}

// unlistedRemote is an exchange that takes requests and lists none.
type unlistedRemote struct{ createRemote }

func (b *unlistedRemote) list(context.Context) ([]remoteThread, error) {
	return nil, &client.SendError{Status: http.StatusNotFound, Refusal: &wire.Error{Status: http.StatusNotFound, Message: "no such route"}}
}

// TestRequestWithoutAList: an exchange that lists no threads gets our request all the same.
func TestRequestWithoutAList(t *testing.T) {
	l, remote, _ := newListRemote(t)
	maker := &unlistedRemote{createRemote{listRemote: remote, next: "2026-01-31-001"}}
	l.remote = maker
	request := thread.Block{{Type: "request", Body: wire.Obj(wire.TextField("intent", "look"))}}
	m := wire.Message{Conversation: "conv_ours", Payload: wire.Obj(wire.Field("mess", request.Tree()))}
	if err := l.Deliver(t.Context(), bridge.Delivery{ID: "a", Address: l.Address().String(), Message: m}); err != nil || maker.made != 1 {
		t.Errorf("it was made %d times, %v", maker.made, err)
	}
}

// TestRequestForAnotherLink: a request for one exchange alone is not sent to a second one, whose claim would be refused.
func TestRequestForAnotherLink(t *testing.T) {
	a := newForeignLink(t, func(c *Config) {
		c.Links = append(c.Links, bridge.Link{Name: "shed", Kind: Kind, Dir: t.TempDir()})
	})
	const block = `[{"request":{"id":"a","intent":"fix the tap"}}]`
	_, v := a.owner("send/garden", block)
	list, _ := v.Get("threads")
	here, there := list.At(0).GetStr("ref"), a.only("fix the tap")
	if _, v := a.owner("send/shed", block); !strings.Contains(string(v.JSON()), `"sent":false,"later":false`) {
		t.Errorf("the same request for another link: %s", v.JSON())
	}
	if code, v := a.owner("send/"+here+"/shed", ""); code != 409 || !strings.Contains(string(v.JSON()), "only for") {
		t.Errorf("the thread for another link: %d %s", code, v.JSON())
	}
	if conv := a.home.thread(here).Peers[string(a.home.bridge.links.All()[1].Address().Pseudonym())].Conv; conv != "" {
		t.Errorf("it was offered in %s", conv)
	}
	a.set(there, `{"status":"claimed"}`)
	a.home.waitStatus(here, thread.Claimed)
}
