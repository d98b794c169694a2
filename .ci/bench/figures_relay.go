package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"time"
)

// measureRelay compares a message that passes through a mailbox relay with a message to the same node's own listener,
// in turn. The difference is the cost of the relay. There is one sender, because the figure is the delay of one caller.
func (s *study) measureRelay(ctx context.Context) (err error) {
	hub, err := s.mesh.serve(ctx, filepath.Join(s.dir, "hub"), "--roles", "directory")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hub.stop()) }()
	srv, err := s.mesh.serve(ctx, filepath.Join(s.dir, "behind"), "--roles", "node", "--via-relay", hub.Directory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	if err := awaitConnections(ctx, hub.url(), 1); err != nil {
		return err
	}
	through, err := newCaller(ctx, hub.Directory, hub.Directory+"/mailbox/"+srv.AgentID)
	if err != nil {
		return err
	}
	direct, err := newCaller(ctx, hub.Directory, srv.URL+"/agentmesh")
	if err != nil {
		return err
	}
	samples := interleave(ctx, s.p, s.Rounds, s.Duration, contender{"direct", 1, direct, srv.cpu}, contender{"pass-through", 1, through, hub.cpu})
	directRounds, relayRounds := samples[0], samples[1]
	plain, passed := summarize(directRounds, nil), summarize(relayRounds, nil)
	added := make([]float64, len(relayRounds))
	for i := range added {
		added[i] = micros(relayRounds[i].P50-directRounds[i].P50) / 1e3
	}
	s.add(newFigure("relay: what pass-through adds, p50", median(added), "ms", "%.0f µs beside %.0f µs, p99 %.0f µs beside %.0f µs; %.0f µs CPU of the relay; %d errors %s",
		passed.P50, plain.P50, passed.P99, plain.P99, passed.CPU, passed.Errors+plain.Errors, passed.Fault+plain.Fault).withMax(2))
	return ctx.Err()
}

// awaitConnections waits until n agents are connected to the relay at base.
func awaitConnections(ctx context.Context, base *url.URL, n int) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c := httpClient{base: base}
	defer c.close()
	for {
		a, err := c.exchange(ctx, request(http.MethodGet, base, "/health", nil))
		if err != nil {
			return err
		}
		var health struct {
			Parts struct {
				Relay struct{ Connected int }
			}
		}
		if err := json.Unmarshal(a.Body, &health); err != nil {
			return fmt.Errorf("health of the relay: %w", err)
		}
		if health.Parts.Relay.Connected >= n {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("the relay has %d connected agents, want %d: %w", health.Parts.Relay.Connected, n, err)
		}
	}
}

// newCaller registers one sender at a directory and returns an operation that sends its messages to an endpoint.
func newCaller(ctx context.Context, directory, endpoint string) (operation, error) {
	b, err := newBench(directory, endpoint, 1)
	if err != nil {
		return nil, err
	}
	tr, err := b.prepareMessage(ctx)
	if err != nil {
		return nil, err
	}
	return tr.operation(tr.base, 1, tr.check), nil
}
