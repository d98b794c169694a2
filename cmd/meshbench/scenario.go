package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// bench has the state that the scenarios of one run share.
type bench struct {
	directory  *url.URL // base URL, with /v1
	endpoint   *url.URL // nil if no node takes messages
	credential string   // of every card that the run registers
	cards      int      // number of cards that lookups and lists find
	workers    int
	calls      *client.HTTP // for requests that are not measured
	corpus     *corpus
	fresh      *corpus // the cards that the register scenarios make

	filling sync.Once
	filled  error
	listed  atomic.Int64   // how many corpus cards workers have taken to register; may exceed cards by one per worker
	made    atomic.Int64   // number of the last card of fresh for which a request was made
	senders []wire.AgentID // cards of the message scenario
}

func newBench(directory, endpoint *url.URL, credential string, cards, workers int) *bench {
	run := fmt.Sprintf("%x", time.Now().UnixNano())
	return &bench{
		directory: directory, endpoint: endpoint, credential: credential, cards: cards, workers: workers,
		calls:  client.NewHTTP(client.HTTPConfig{Local: true}),
		corpus: newCorpus("b" + run), fresh: newCorpus("r" + run),
	}
}

// traffic makes the requests of a scenario and checks their responses.
type traffic struct {
	base    *url.URL
	request func(worker int) ([]byte, error)
	check   func(worker int, a answer) error // checks a response of the server under test
	status  int                              // expected of every response
	durable bool                             // the control must commit the bodies
}

type scenario struct {
	name    string
	message bool // the requests go to an endpoint
	prepare func(*bench, context.Context) (traffic, error)
}

var scenarios = []scenario{
	{"register", false, (*bench).prepareRegister},              // POST a new card
	{"register-proven", false, (*bench).prepareRegisterProven}, // POST a new card with a proof of its key
	{"get", false, (*bench).prepareGet},                        // GET a card
	{"get-conditional", false, (*bench).prepareGetConditional}, // GET a card that the client has: 304
	{"list", false, (*bench).prepareList},                      // GET the first page of a capability
	{"search", false, (*bench).prepareSearch},                  // GET a page for a word and a capability
	{"message", true, (*bench).prepareMessage},                 // POST a signed message, get a signed reply
}

func findScenario(name string) (scenario, error) {
	for _, s := range scenarios {
		if s.name == name {
			return s, nil
		}
	}
	return scenario{}, fmt.Errorf("unknown scenario %q", name)
}

// operation returns an operation that sends the traffic to base, which may be the server or a control.
func (t traffic) operation(base *url.URL, workers int, check func(int, answer) error) operation {
	links := make([]link, workers)
	for i := range links {
		links[i].base = base
	}
	return func(ctx context.Context, worker int) error {
		req, err := t.request(worker)
		if err != nil {
			return err
		}
		a, err := links[worker].exchange(ctx, req)
		switch {
		case err != nil:
			return err
		case a.Status != t.status:
			return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
		case check == nil:
			return nil
		}
		return check(worker, a)
	}
}

// sample makes one request and returns the response, which the control then repeats.
func (t traffic) sample(ctx context.Context) (answer, error) {
	l := link{base: t.base}
	defer l.close()
	req, err := t.request(0)
	if err != nil {
		return answer{}, err
	}
	a, err := l.exchange(ctx, req)
	if err == nil && a.Status != t.status {
		err = fmt.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	a.Body = bytes.Clone(a.Body)
	return a, err
}

// path returns the path of a request below the directory's base URL.
func (b *bench) path(rest string) string { return b.directory.EscapedPath() + rest }

func (b *bench) newRegistration(card []byte, id wire.AgentID, headers ...string) []byte {
	headers = append(headers, "Authorization", "Bearer "+b.credential, keyHeader, string(id))
	return request(http.MethodPost, b.directory, b.path("/agents"), card, headers...)
}

func (b *bench) prepareRegister(context.Context) (traffic, error) {
	return traffic{base: b.directory, status: http.StatusCreated, durable: true, request: func(int) ([]byte, error) {
		i := int(b.made.Add(1))
		return b.newRegistration(b.fresh.card(i), b.fresh.id(i)), nil
	}}, nil
}

func (b *bench) prepareRegisterProven(context.Context) (traffic, error) {
	return traffic{base: b.directory, status: http.StatusCreated, durable: true, request: func(int) ([]byte, error) {
		i := int(b.made.Add(1))
		card := b.fresh.card(i)
		proof, err := b.makeProof(card, b.fresh.keys[i%len(b.fresh.keys)])
		if err != nil {
			return nil, err
		}
		return b.newRegistration(card, b.fresh.id(i), wire.HeaderKeyProof, proof), nil
	}}, nil
}

// fill registers the cards that lookups and lists find, once per run.
func (b *bench) fill(ctx context.Context) error {
	b.filling.Do(func() {
		var all sync.WaitGroup
		faults := make([]error, b.workers)
		for w := range b.workers {
			all.Go(func() {
				l := link{base: b.directory}
				defer l.close()
				for i := int(b.listed.Add(1)) - 1; i < b.cards && faults[w] == nil; i = int(b.listed.Add(1)) - 1 {
					a, err := l.exchange(ctx, b.newRegistration(b.corpus.card(i), b.corpus.id(i)))
					if err == nil && a.Status != http.StatusCreated {
						err = fmt.Errorf("status %d: %.200s", a.Status, a.Body)
					}
					faults[w] = err
				}
			})
		}
		all.Wait()
		for _, err := range faults {
			if err != nil {
				b.filled = fmt.Errorf("register the cards to look up: %w", err)
			}
		}
	})
	return b.filled
}

// randomCardPath returns the path of a random card among those that fill registers.
func (b *bench) randomCardPath() string {
	return b.path("/agents/" + string(b.corpus.id(rand.IntN(b.cards))))
}

func (b *bench) prepareGet(ctx context.Context) (traffic, error) {
	return traffic{base: b.directory, status: http.StatusOK, request: func(int) ([]byte, error) {
		return request(http.MethodGet, b.directory, b.randomCardPath(), nil), nil
	}}, b.fill(ctx)
}

func (b *bench) prepareGetConditional(ctx context.Context) (traffic, error) {
	t := traffic{base: b.directory, status: http.StatusNotModified}
	if err := b.fill(ctx); err != nil {
		return t, err
	}
	l := link{base: b.directory}
	defer l.close()
	ready := make([][]byte, b.cards)
	for i := range ready {
		path := b.path("/agents/" + string(b.corpus.id(i)))
		a, err := l.exchange(ctx, request(http.MethodGet, b.directory, path, nil))
		if err != nil {
			return t, err
		}
		ready[i] = request(http.MethodGet, b.directory, path, nil, "If-None-Match", a.Header.Get("Etag"))
	}
	t.request = func(int) ([]byte, error) { return ready[rand.IntN(len(ready))], nil }
	return t, nil
}

func (b *bench) prepareList(ctx context.Context) (traffic, error) {
	return b.prepareRepeated(ctx, url.Values{"capability": {capability(3)}, "limit": {"20"}})
}

func (b *bench) prepareSearch(ctx context.Context) (traffic, error) {
	return b.prepareRepeated(ctx, url.Values{"q": {wordOf(0)}, "capability": {capability(3)}, "limit": {"20"}})
}

// prepareRepeated prepares requests for one page, so that the control can return the same bytes.
func (b *bench) prepareRepeated(ctx context.Context, q url.Values) (traffic, error) {
	req := request(http.MethodGet, b.directory, b.path("/agents?"+q.Encode()), nil)
	return traffic{base: b.directory, status: http.StatusOK, request: func(int) ([]byte, error) { return req, nil }}, b.fill(ctx)
}

// withdrawAll withdraws every card that the run registered, at a directory that meshbench did not start.
func (b *bench) withdrawAll(ctx context.Context) error {
	var ids []wire.AgentID
	for i := range int(b.listed.Load()) {
		ids = append(ids, b.corpus.id(i))
	}
	for i := range int(b.made.Load()) {
		ids = append(ids, b.fresh.id(i+1))
	}
	l := link{base: b.directory}
	defer l.close()
	for _, id := range append(ids, b.senders...) {
		req := request(http.MethodDelete, b.directory, b.path("/agents/"+string(id)), nil, "Authorization", "Bearer "+b.credential)
		a, err := l.exchange(ctx, req)
		if err != nil {
			return fmt.Errorf("withdraw the cards of this run: %w", err)
		}
		if a.Status != http.StatusNoContent && a.Status != http.StatusNotFound {
			return fmt.Errorf("withdraw the cards of this run: status %d: %.200s", a.Status, a.Body)
		}
	}
	return nil
}

func (b *bench) base() string { return strings.TrimRight(b.directory.String(), "/") }
