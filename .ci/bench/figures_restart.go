package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// measureRestart kills a directory of many cards right after a registration. It measures how long the next process
// takes until one search finds the last card, and [comparedSearch] finds the same cards in the same order as before.
func (s *study) measureRestart(ctx context.Context) error {
	if err := fillBig(ctx, s.p, s.data, s.Cards); err != nil {
		return err
	}
	word, wantIDs, err := s.killBusy(ctx)
	if err != nil {
		return err
	}
	took, srv, err := s.timedStart(ctx, s.data, func(base *url.URL) bool {
		return bytes.Contains(search(ctx, base, url.Values{"q": {word}}), []byte(word)) &&
			bytes.Equal(cardIDs(search(ctx, base, comparedSearch)), wantIDs)
	})
	if err != nil {
		return err
	}
	if err := srv.stop(); err != nil {
		return err
	}
	f := newFigure(fmt.Sprintf("SIGKILL to first correct search, %d cards", s.Cards), took.Seconds(), "s", "from exec of agentmesh serve")
	s.add(f.withMax(10))
	return nil
}

// comparedSearch is a search whose result must be the same after the kill.
var comparedSearch = url.Values{"q": {wordOf(40)}, "capability": {capability(20)}, "limit": {"50"}}

// killBusy starts a server over the big database, registers a card with a unique word and kills the server at once. It
// returns the word, and the ids that [comparedSearch] found before the registration.
func (s *study) killBusy(ctx context.Context) (word string, wantIDs []byte, err error) {
	srv, err := s.mesh.serve(ctx, s.data)
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, srv.kill()) }()
	b, err := srv.bench(1)
	if err != nil {
		return "", nil, err
	}
	wantIDs = cardIDs(search(ctx, srv.url(), comparedSearch))
	if len(wantIDs) == 0 {
		return "", nil, errors.New("the search to compare with finds nothing")
	}
	word = fmt.Sprintf("late%x", time.Now().UnixNano())
	id := wire.AgentID("am_" + word)
	card := cardJSON(id, "The "+word+" one", "Came last.", endpointOf(id), newKey(word).text, []string{"coming"}, nil)
	if _, err := sendOnce(ctx, b.directory, b.newRegistration(card, id), http.StatusCreated); err != nil {
		return "", nil, fmt.Errorf("register the last card: %w", err)
	}
	return word, wantIDs, nil
}

// search returns the page that a search finds, or nil if the request fails.
func search(ctx context.Context, base *url.URL, q url.Values) []byte {
	a, err := sendOnce(ctx, base, request(http.MethodGet, base, "/v1/agents?"+q.Encode(), nil), http.StatusOK)
	if err != nil {
		return nil
	}
	return a.Body
}

// cardIDs returns the ids of the cards on a page, in order.
func cardIDs(page []byte) []byte {
	doc, err := wire.ParseObject(page)
	if err != nil {
		return nil
	}
	var ids []byte
	agents, _ := doc.Get("agents")
	for a := range agents.Elems() {
		ids = append(append(ids, a.GetStr("agent_id")...), ' ')
	}
	return ids
}
