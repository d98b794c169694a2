package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// measureRestart kills a directory of many cards right after a registration. It measures how long the next process
// takes until one search finds the last card, and [comparedSearch] finds the same cards in the same order as before.
func (s *study) measureRestart(ctx context.Context) error {
	if err := fillBig(ctx, s.p, s.data, s.Cards); err != nil {
		return err
	}
	for _, variant := range []struct {
		name    string
		prepare func() error
	}{
		{"as it was killed", func() error { return nil }},
		{"without its index file", func() error { return remove(filepath.Join(s.data, databaseFile+".index")) }},
	} {
		s.p.say("restart, %s", variant.name)
		word, wantIDs, err := s.killBusy(ctx)
		if err != nil {
			return err
		}
		if err := variant.prepare(); err != nil {
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
		f := newFigure(fmt.Sprintf("SIGKILL to first correct search, %d cards, %s", s.Cards, variant.name), took.Seconds(), "s", "from exec of agentmesh serve")
		s.add(f.withMax(10))
	}
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
	b, err := srv.bench(bigCredential, 1, 1)
	if err != nil {
		return "", nil, err
	}
	wantIDs = cardIDs(search(ctx, srv.url(), comparedSearch))
	if len(wantIDs) == 0 {
		return "", nil, errors.New("the search to compare with finds nothing")
	}
	word = "late" + strings.TrimPrefix(b.fresh.prefix, "r")
	id := wire.AgentID("am_" + word)
	l := link{base: b.directory}
	defer l.close()
	a, err := l.exchange(ctx, b.newRegistration(cardJSON(id, "The "+word+" one", "Came last.", endpointOf(id), newKey(word).text, []string{"coming"}, nil), id))
	if err == nil && a.Status != http.StatusCreated {
		err = fmt.Errorf("register the last card: status %d: %.200s", a.Status, a.Body)
	}
	return word, wantIDs, err
}

func search(ctx context.Context, base *url.URL, q url.Values) []byte {
	l := link{base: base}
	defer l.close()
	a, err := l.exchange(ctx, request(http.MethodGet, base, "/v1/agents?"+q.Encode(), nil))
	if err != nil || a.Status != http.StatusOK {
		return nil
	}
	return a.Body
}

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

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
