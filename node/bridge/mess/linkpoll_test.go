package mess

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

type listRemote struct {
	fakeRemote
	listed []remoteThread
	fails  map[string]error
	reads  []string
}

func (b *listRemote) resume(context.Context, string) error { return nil }

func (b *listRemote) pause() time.Duration { return 5 * time.Second }

func (b *listRemote) list(context.Context) ([]remoteThread, error) {
	return slices.Clone(b.listed), nil
}

func (b *listRemote) view(_ context.Context, ref string) (remoteView, error) {
	b.reads = append(b.reads, ref)
	if err := b.fails[ref]; err != nil {
		return remoteView{}, err
	}
	request := thread.Block{{Type: "request", Body: wire.Obj(wire.TextField("intent", ref))}}
	return remoteView{messages: []thread.Message{{Serial: 1, From: "from-" + ref, Mess: request.Tree()}}}, nil
}

// refusingMesh is a mesh that accepts messages except those that it is set to refuse.
type refusingMesh struct {
	bridge.Receiver
	took   []string
	refuse map[string]error
}

func (r *refusingMesh) Accept(_ context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	if err := r.refuse[in.Name]; err != nil {
		return bridge.Outcome{}, err
	}
	r.took = append(r.took, in.Name)
	return bridge.Outcome{}, nil
}

func newListRemote(t *testing.T) (*link, *listRemote, *refusingMesh) {
	t.Helper()
	l := newLab(t)
	desk := &refusingMesh{refuse: map[string]error{}}
	b, err := New(Config{
		Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(desk, l.store), HTTP: client.NewHTTP(client.HTTPConfig{Local: true}),
		Links: []bridge.Link{{Name: "garden", Kind: Kind, URL: "http://127.0.0.1:9"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	remote := &listRemote{fails: map[string]error{}}
	b.links.All()[0].remote = remote
	return b.links.All()[0], remote, desk
}

// TestOneThreadHoldsNoLinkUp: a thread that cannot be read, or a peer that is over its limit, delays nobody else behind
// the link.
func TestOneThreadHoldsNoLinkUp(t *testing.T) {
	l, remote, desk := newListRemote(t)
	for i, ref := range []string{"deep", "gone", "loud", "loud2", "full", "honest"} {
		remote.listed = append(remote.listed, remoteThread{ref, strings.TrimRight(ref, "2"), fmt.Sprint(i)})
	}
	remote.fails["deep"] = &client.SendError{Status: 200, Processed: true}
	remote.fails["gone"] = &client.SendError{Status: 404}
	remote.fails["full"] = &client.SendError{Status: 200, Retry: true}
	desk.refuse["from-loud"] = &wire.Error{Code: wire.RateLimited, Status: 429, Retry: true, Message: "too many", RetryAfter: time.Minute}
	if err := l.poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"from-honest"}; !slices.Equal(desk.took, want) {
		t.Errorf("taken in: %v, want %v", desk.took, want)
	}
	if slices.Contains(remote.reads, "loud2") {
		t.Error("the next thread of a peer over its limit was read")
	}
	// Threads that are known, never readable, or waiting are not read in every poll.
	remote.reads = nil
	if err := l.poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"loud2"}; !slices.Equal(remote.reads, want) {
		t.Errorf("read again: %v, want %v", remote.reads, want)
	}
	// A changed thread is read, and so is a postponed one when its time has come, even if it is no longer listed.
	clear(desk.refuse)
	clear(remote.fails)
	for ref, p := range l.looks {
		p.at = time.Time{}
		l.looks[ref] = p
	}
	remote.listed = []remoteThread{{"deep", "deep", "changed"}}
	if err := l.poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(desk.took)
	if want := []string{"from-deep", "from-full", "from-honest", "from-loud", "from-loud2"}; !slices.Equal(desk.took, want) {
		t.Errorf("taken in: %v, want %v", desk.took, want)
	}
	// An exchange that does not answer ends the poll.
	remote.listed = []remoteThread{{"a", "a", "1"}, {"b", "b", "1"}}
	remote.fails["a"] = &client.SendError{Retry: true}
	remote.reads = nil
	if err := l.poll(t.Context()); !errors.Is(err, errUnreachable) || len(remote.reads) != 1 {
		t.Errorf("%v, read: %v", err, remote.reads)
	}
}

// TestFailingThreadsTakeTurns: many failing threads end a poll, and those behind them have their turn in the next one.
func TestFailingThreadsTakeTurns(t *testing.T) {
	l, remote, desk := newListRemote(t)
	for i := range 3 * maxFailed {
		ref := fmt.Sprint("bad", i)
		remote.listed = append(remote.listed, remoteThread{ref, "eve", "1"})
		remote.fails[ref] = &client.SendError{Status: 500, Retry: true}
	}
	remote.listed = append(remote.listed, remoteThread{"honest", "bob", "1"})
	for range 4 {
		if err := l.poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Contains(desk.took, "from-honest") {
		t.Error("the last thread had no turn")
	}
}

// TestLongList: a page of the longest intents fits into an answer, and a long list has several pages.
func TestLongList(t *testing.T) {
	foreign := newHTTPLab(t, nil)
	foreign.LimitThreads(nil, 0)
	key := foreign.register("us")
	for i := range smallPage {
		foreign.request("us", fmt.Sprintf("{id: r%d, intent: '%s'}", i, strings.Repeat(`"`, 16<<10)))
	}
	foreign.request("us", "{intent: last}")
	r := &restRemote{state: &restState{}, base: foreign.srv.URL, token: client.Credential(key), http: client.NewHTTP(client.HTTPConfig{Local: true})}
	if list, err := r.list(t.Context()); err != nil || len(list) != smallPage+1 {
		t.Errorf("%d threads, %v", len(list), err)
	}
}

// TestForeignRefsStayInTheirPlace: a ref of a foreign exchange becomes part of a path that the link calls with the
// owner's key. A ref that would lead elsewhere is not used.
func TestForeignRefsStayInTheirPlace(t *testing.T) {
	for _, ref := range []string{"", ".", "..", "../admin", "a/../../admin", "a/messages", "a?limit=1", "a#b", "%2e%2e", "..%2fadmin", "a b", "a\\b", strings.Repeat("a", 129)} {
		t.Run(ref, func(t *testing.T) {
			var asked []string
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.Method+" "+r.RequestURI)
				thread := wire.Obj(wire.TextField("ref", ref))
				good := wire.Obj(wire.TextField("ref", "2026-01-01-001"))
				_, _ = w.Write(thread.With("threads", wire.Arr(thread, good)).JSON())
			}))
			defer srv.Close()
			r := &restRemote{
				state: &restState{}, base: srv.URL + "/api/v1/exchanges/ex", token: "key", http: client.NewHTTP(client.HTTPConfig{Local: true}),
			}
			if got, err := r.create(t.Context(), "", wire.Obj()); err == nil {
				t.Errorf("create() = %q", got)
			}
			list, err := r.list(t.Context())
			if err != nil || len(list) != 1 || list[0].ref != "2026-01-01-001" {
				t.Errorf("list() = %+v, %v, want the thread with the good ref", list, err)
			}
			if want := []string{"POST /api/v1/exchanges/ex/requests", "GET /api/v1/exchanges/ex/requests?limit=100"}; !slices.Equal(asked, want) {
				t.Errorf("asked for %q, want %q", asked, want)
			}
		})
	}
}
