package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// messSettings are the documented settings that switch on the MESS exchange without its limits.
var messSettings = []string{
	"--set", "mess.serve=on", "--set", "mess.calls_per_minute=0", "--set", "mess.threads_per_hour=0", "--set", "mess.registrations_per_hour=0",
}

const messPath = "/api/v1/exchanges/home/"

// requesters are clients of a MESS exchange, one per worker.
type requesters struct {
	base *url.URL
	keys []string // API keys, by worker
}

// registerMESS registers one executor per worker, with the capability that the threads of newCreation require. The
// workers send with the API keys of these executors.
func registerMESS(ctx context.Context, base *url.URL, workers int) (*requesters, error) {
	r := &requesters{base: base}
	for w := range workers {
		body := fmt.Appendf(nil, `{"executor_id":"bench-%d","capabilities":["knife"]}`, w)
		a, err := sendOnce(ctx, base, request(http.MethodPost, base, messPath+"register", body), http.StatusCreated)
		if err != nil {
			return nil, fmt.Errorf("register with the exchange: %w", err)
		}
		v, err := wire.ParseObject(a.Body)
		if err != nil {
			return nil, fmt.Errorf("register with the exchange: %w", err)
		}
		r.keys = append(r.keys, v.GetStr("api_key"))
	}
	return r, nil
}

// newCreation returns an operation that creates a thread.
func (r *requesters) newCreation() operation {
	t := traffic{base: r.base, status: http.StatusCreated, request: func(w int) ([]byte, error) {
		return r.request(w, http.MethodPost, "requests", []byte(`{"intent":"dice two onions for the soup tonight","context":["the board is in the second drawer"],"requires":["knife"]}`)), nil
	}}
	return t.operation(r.base, len(r.keys), nil)
}

func (r *requesters) request(w int, method, path string, body []byte) []byte {
	return request(method, r.base, messPath+path, body, "Authorization", "Bearer "+r.keys[w])
}

// getPage gets the page of pending threads that begins at cursor. It returns the cursor of the next page, the number of
// threads on this page, and how long the response took.
func (r *requesters) getPage(ctx context.Context, c *httpClient, cursor string) (next string, n int, took time.Duration, err error) {
	begin := time.Now()
	a, err := c.exchange(ctx, r.request(0, http.MethodGet, "requests?status=pending&limit=100&after="+url.QueryEscape(cursor), nil))
	if err != nil {
		return "", 0, 0, err
	}
	took = time.Since(begin)
	v, err := wire.ParseLimits(a.Body, wire.MaxDepth, 1<<20)
	list, _ := v.Get("threads")
	if err != nil || a.Status != http.StatusOK {
		return "", 0, 0, fmt.Errorf("a page of threads: status %d: %.200s", a.Status, a.Body)
	}
	return v.GetStr("next"), list.Len(), took, nil
}

// measureMESS compares the creation of threads with the acceptance of signed messages in the same process. Both respond
// after the commit. Then measureMESS measures what many open threads cost: a page, and a restart.
func (s *study) measureMESS(ctx context.Context) (err error) {
	data := filepath.Join(s.dir, "mess")
	srv, err := s.mesh.serve(ctx, data, messSettings...)
	if err != nil {
		return err
	}
	defer func() {
		if srv != nil {
			err = errors.Join(err, srv.stop())
		}
	}()
	b, err := srv.bench(s.Concurrency)
	if err != nil {
		return err
	}
	s.p.say("mess: prepare")
	messages, err := b.prepareMessage(ctx)
	if err != nil {
		return err
	}
	r, err := registerMESS(ctx, srv.url(), s.Concurrency)
	if err != nil {
		return err
	}
	samples := interleave(ctx, s.p, s.Rounds, s.Duration,
		contender{"mess create", b.workers, r.newCreation(), srv.cpu},
		contender{"message", b.workers, messages.operation(messages.base, b.workers, messages.check), srv.cpu})
	created, accepted := samples[0], samples[1]
	o := summarize(created, nil)
	s.add(newFigure("mess: threads created beside signed messages taken, a second", ratio(created, accepted, sample.rate), "×",
		"%d clients; %.0f/s beside %.0f/s; server CPU %.0f µs beside %.0f µs; p99 %.0f µs, %d errors %s", b.workers,
		o.Rate, medianOf(accepted, sample.rate), o.CPU, medianOf(accepted, sample.cost), o.P99, o.Errors, o.Fault).withMin(0.5))
	made := 0
	for _, round := range created {
		made += round.Ops
	}
	for create := r.newCreation(); made < s.Threads && ctx.Err() == nil; {
		s.p.say("mess: %d of %d threads", made, s.Threads)
		round := drive(ctx, b.workers, time.Second, create)
		if round.Ops == 0 {
			return fmt.Errorf("no thread was made: %s", round.Fault)
		}
		made += round.Ops
	}
	if err := s.measureMESSPages(ctx, r, made); err != nil {
		return err
	}
	running := srv
	srv = nil // the deferred function does not stop it again
	if err := running.stop(); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	return s.measureMESSRestart(ctx, data, r, made)
}

func (s *study) measureMESSPages(ctx context.Context, r *requesters, made int) error {
	c := httpClient{base: r.base}
	defer c.close()
	var took []time.Duration
	for range s.Rounds {
		seen := 0
		for cursor := ""; ctx.Err() == nil; {
			next, n, delay, err := r.getPage(ctx, &c, cursor)
			if err != nil {
				return err
			}
			took, seen = append(took, delay), seen+n
			if cursor = next; cursor == "" {
				break
			}
		}
		if seen < made {
			return fmt.Errorf("the pages have %d threads, but %d were made", seen, made)
		}
	}
	slices.Sort(took)
	s.add(newFigure("mess: p99 of a page of 100 by state", float64(quantile(took, 0.99).Microseconds())/1e3, "ms",
		"%d open threads, %d pages, p50 %.2f ms", made, len(took), float64(quantile(took, 0.5).Microseconds())/1e3).withMax(5))
	return nil
}

func (s *study) measureMESSRestart(ctx context.Context, data string, r *requesters, made int) error {
	s.p.say("mess: restart")
	took, srv, err := s.timedStart(ctx, data, func(base *url.URL) bool {
		if !isReady(ctx, base) {
			return false
		}
		c := httpClient{base: base}
		defer c.close()
		_, n, _, err := (&requesters{base, r.keys}).getPage(ctx, &c, "")
		return err == nil && n >= min(100, made)
	}, messSettings...)
	if err != nil {
		return err
	}
	s.add(newFigure("mess: start to ready and the first page", took.Seconds(), "s", "%d open threads, from exec of agentmesh serve", made).withMax(3))
	return srv.stop()
}
