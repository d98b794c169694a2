package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

// ownerLists are the lists that the owner API returns, and those of the owner's page.
var ownerLists = []string{
	"/owner/status", "/owner/inbox", "/owner/inbox?state=waiting", "/owner/conversations", "/owner/conversations?state=open", "/owner/peers", "/owner/approvals",
	"/owner/outbox", "/owner/notices", "/owner/audit", "/owner/page/", "/owner/page/approvals", "/owner/page/inbox", "/owner/page/conversations", "/owner/page/people", "/owner/page/outbox", "/owner/page/notices",
	"/owner/page/log",
}

const (
	talksOfPeer   = 10   // conversations with one peer
	arrivalRate   = 1000 // messages a second
	ownerListTime = 30   // rounds of ownerLists for one --rounds
)

// measureOwner measures the owner's lists at a node with many conversations and peers, while further messages arrive.
func (s *study) measureOwner(ctx context.Context) (err error) {
	data := filepath.Join(s.dir, "owner")
	srv, err := s.mesh.serve(ctx, data, "--set", "owner_api.listen=127.0.0.1:0", "--set", "name=Bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	b, err := srv.bench(s.Concurrency)
	if err != nil {
		return err
	}
	recipient, _, err := b.fetchRecipient(ctx)
	if err != nil {
		return err
	}
	directory := client.NewDirectory(b.directory.String(), client.NewHTTP(client.HTTPConfig{Local: true}), nil)
	peers := make([]sender, max(1, s.Conversations/talksOfPeer))
	if err := callEach(len(peers), func(i int) (err error) {
		if i%1000 == 0 {
			s.p.say("owner: register sender %d of %d", i, len(peers))
		}
		peers[i], err = newSender(ctx, directory, fmt.Sprintf("%s peer %d", b.corpus.prefix, i))
		peers[i].talk = 1
		return err
	}); err != nil {
		return err
	}
	var turns sync.Mutex
	turn := 0
	free := make([]sync.Mutex, len(peers)) // one message of a sender at a time
	send := traffic{base: b.endpoint, status: http.StatusOK, request: func(int) ([]byte, error) {
		turns.Lock()
		turn++
		i := turn % len(peers)
		turns.Unlock()
		free[i].Lock()
		defer free[i].Unlock()
		body, err := peers[i].nextMessage(recipient, time.Now())
		return request(http.MethodPost, b.endpoint, b.endpoint.EscapedPath(), body), err
	}}.operation(b.endpoint, b.workers, nil)
	for sent := 0; sent < s.Conversations && ctx.Err() == nil; {
		s.p.say("owner: %d of %d conversations", sent, s.Conversations)
		round := drive(ctx, b.workers, min(s.Duration, time.Second), send)
		if round.Errors > 0 {
			return errors.New(round.Fault)
		}
		sent += round.Ops
	}
	stop := b.arrive(ctx, send)
	took, err := s.timeLists(ctx, srv, filepath.Join(data, "owner.token"))
	rate, faults := stop()
	if err = errors.Join(err, faults); err != nil {
		return err
	}
	worst, p99 := "", time.Duration(0)
	for path, times := range took {
		slices.Sort(times)
		if t := quantile(times, 0.99); t > p99 {
			worst, p99 = path, t
		}
	}
	s.add(newFigure("owner: p99 of the slowest list", float64(p99.Microseconds())/1e3, "ms", "%s, of %d lists; %d conversations, %d peers, %.0f messages/s arriving",
		worst, len(took), turn, len(peers), rate).withMax(100))
	return ctx.Err()
}

// arrive sends arrivalRate messages a second until stop is called, which returns the rate and the first error.
func (b *bench) arrive(ctx context.Context, send operation) (stop func() (rate float64, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	due := time.NewTicker(time.Second / arrivalRate)
	began := time.Now()
	var all sync.WaitGroup
	sent, errs := make([]int, b.workers), make([]error, b.workers)
	for w := range b.workers {
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-due.C:
				}
				if err := send(ctx, w); err != nil && ctx.Err() == nil {
					errs[w] = err
					return
				}
				sent[w]++
			}
		})
	}
	return func() (float64, error) {
		elapsed := time.Since(began)
		cancel()
		all.Wait()
		total := 0
		for _, n := range sent {
			total += n
		}
		return float64(total) / elapsed.Seconds(), errors.Join(errs...)
	}
}

// timeLists gets each of ownerLists again and again, and returns how long each one took.
func (s *study) timeLists(ctx context.Context, srv *child, tokenFile string) (map[string][]time.Duration, error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(srv.OwnerAPI)
	if err != nil {
		return nil, err
	}
	c := httpClient{base: base}
	defer c.close()
	took := make(map[string][]time.Duration)
	for round := range ownerListTime * s.Rounds {
		s.p.say("owner: lists, round %d", round+1)
		for _, path := range ownerLists {
			start := time.Now()
			a, err := c.exchange(ctx, request(http.MethodGet, base, path, nil, "Authorization", "Bearer "+strings.TrimSpace(string(token))))
			if err == nil {
				err = a.checkStatus(http.StatusOK)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			took[path] = append(took[path], time.Since(start))
		}
	}
	return took, nil
}
