package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// benchCredential is the credential of the cards. It must not change, because the database that --data keeps has cards
// with this credential.
const benchCredential = "meshbench-big-credential"

// bench makes the requests to one directory and one node.
type bench struct {
	directory         *url.URL // base URL, with /v1
	endpoint          *url.URL
	workers           int
	talk              int          // messages in one conversation; of their replies, only the first is checked
	corpus            *corpus      // the first filledCards cards are for lookups and searches, the others for registrations
	registrationCount atomic.Int64 // number of registrations for which a request was made
}

func newBench(directory, endpoint string, workers int) (*bench, error) {
	d, err := url.Parse(directory)
	if err != nil {
		return nil, err
	}
	e, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	return &bench{directory: d, endpoint: e, workers: workers, talk: talkLength, corpus: newCorpus(fmt.Sprintf("b%x", time.Now().UnixNano()))}, nil
}

// bench returns a bench for a child process that runs a directory and a node.
func (c *child) bench(workers int) (*bench, error) { return newBench(c.Directory, c.Endpoint, workers) }

// traffic makes the requests of a measurement and checks their responses. They go to the server under test or to a
// control server, which always returns the same response.
type traffic struct {
	base    *url.URL // of the server under test
	request func(worker int) ([]byte, error)
	check   func(worker int, a answer) error // checks a response of the server under test
	status  int                              // the status that every response must have
	durable bool                             // a control server must commit the bodies to disk
}

// operation returns an operation that sends the traffic to base. check is t.check, or nil to check only the status.
func (t traffic) operation(base *url.URL, workers int, check func(int, answer) error) operation {
	clients := make([]httpClient, workers)
	for i := range clients {
		clients[i].base = base
	}
	return func(ctx context.Context, worker int) error {
		req, err := t.request(worker)
		if err != nil {
			return err
		}
		a, err := clients[worker].exchange(ctx, req)
		if err == nil {
			err = a.checkStatus(t.status)
		}
		if err != nil || check == nil {
			return err
		}
		return check(worker, a)
	}
}

// sampleAnswer makes one request and returns the response, which the control server then repeats.
func (t traffic) sampleAnswer(ctx context.Context) (answer, error) {
	req, err := t.request(0)
	if err != nil {
		return answer{}, err
	}
	return sendOnce(ctx, t.base, req, t.status)
}

// path returns the path of a request below the directory's base URL.
func (b *bench) path(rest string) string { return b.directory.EscapedPath() + rest }

func (b *bench) cardPath(i int) string { return b.path("/agents/" + string(b.corpus.id(i))) }

// newRegistration returns the bytes of a request that registers a card.
func (b *bench) newRegistration(card []byte, id wire.AgentID, headers ...string) []byte {
	headers = append(headers, "Authorization", "Bearer "+benchCredential, keyHeader, string(id)) // keyHeader is for the control server
	return request(http.MethodPost, b.directory, b.path("/agents"), card, headers...)
}

// registrations returns registrations of new cards, with a proof of the key if isProven is set.
func (b *bench) registrations(isProven bool) traffic {
	return traffic{base: b.directory, status: http.StatusCreated, durable: true, request: func(int) ([]byte, error) {
		i := filledCards + int(b.registrationCount.Add(1))
		card := b.corpus.card(i)
		if !isProven {
			return b.newRegistration(card, b.corpus.id(i)), nil
		}
		proof, err := b.makeProof(card, b.corpus.keys[i%len(b.corpus.keys)])
		return b.newRegistration(card, b.corpus.id(i), wire.HeaderKeyProof, proof), err
	}}
}

// fill registers the cards that the lookups and searches find.
func (b *bench) fill(ctx context.Context) error {
	return callEach(filledCards, func(i int) error {
		if _, err := sendOnce(ctx, b.directory, b.newRegistration(b.corpus.card(i), b.corpus.id(i)), http.StatusCreated); err != nil {
			return fmt.Errorf("register the cards to find: %w", err)
		}
		return nil
	})
}

// lookups returns requests for random cards.
func (b *bench) lookups() traffic {
	return traffic{base: b.directory, status: http.StatusOK, request: func(int) ([]byte, error) {
		return request(http.MethodGet, b.directory, b.cardPath(rand.IntN(lookupCards)), nil), nil
	}}
}

// conditionalLookups returns requests for random cards that the client has already.
func (b *bench) conditionalLookups(ctx context.Context) (traffic, error) {
	t := traffic{base: b.directory, status: http.StatusNotModified}
	c := httpClient{base: b.directory}
	defer c.close()
	ready := make([][]byte, lookupCards)
	for i := range ready {
		a, err := c.exchange(ctx, request(http.MethodGet, b.directory, b.cardPath(i), nil))
		if err != nil {
			return t, err
		}
		ready[i] = request(http.MethodGet, b.directory, b.cardPath(i), nil, "If-None-Match", a.Header.Get("Etag"))
	}
	t.request = func(int) ([]byte, error) { return ready[rand.IntN(len(ready))], nil }
	return t, nil
}

// eachOf returns requests for a page of the directory: the queries in turn.
func (b *bench) eachOf(path string, queries ...url.Values) traffic {
	var ready [][]byte
	for _, q := range queries {
		ready = append(ready, request(http.MethodGet, b.directory, b.path(path+"?"+q.Encode()), nil))
	}
	var n atomic.Uint64
	return traffic{base: b.directory, status: http.StatusOK, request: func(int) ([]byte, error) {
		return ready[n.Add(1)%uint64(len(ready))], nil
	}}
}
