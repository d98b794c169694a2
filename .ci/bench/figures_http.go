package main

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"time"
)

// lookupCards is the number of cards that measureHTTP registers before it measures.
const lookupCards = 1000

// measureHTTP compares the directory over HTTP with plain servers.
func (s *study) measureHTTP(ctx context.Context) (err error) {
	srv, err := s.mesh.serve(ctx, filepath.Join(s.dir, "http"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	b, err := srv.bench(s.Concurrency)
	if err != nil {
		return err
	}
	s.p.say("http: register %d cards", lookupCards)
	if err := b.fill(ctx); err != nil {
		return err
	}
	if err := s.measureLookups(ctx, b, srv.cpu); err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		traffic
		minRate float64 // lowest accepted throughput relative to the control (bare); 0 for no target
	}{
		{"register", b.registrations(false), 0.6},
		{"register-proven", b.registrations(true), 0},
		{"list", b.searches(url.Values{"capability": {capability(3)}, "limit": {"20"}}), 0.65},
		{"search", b.searches(url.Values{"q": {wordOf(0)}, "capability": {capability(3)}, "limit": {"20"}}), 0.55},
	} {
		o, err := s.measure(ctx, m.name, m.traffic, srv.cpu)
		if err != nil {
			return err
		}
		f := newFigure(m.name+": throughput vs. bare", o.RateRatio, "×", "%.0f/s, p99 %.0f µs, %.1f µs server CPU, %.2f × bare, %d errors %s", o.Rate, o.P99, o.CPU, o.CPURatio, o.Errors, o.Fault)
		if m.minRate > 0 {
			f = f.withMin(m.minRate)
		}
		s.add(f)
	}
	return nil
}

// measureLookups compares GET of a card with a plain server, and a conditional GET with a full one, all in turn.
func (s *study) measureLookups(ctx context.Context, b *bench, cpu func() time.Duration) error {
	full := b.lookups()
	conditional, err := b.conditionalLookups(ctx)
	if err != nil {
		return err
	}
	control, stop, err := s.newControl(ctx, "get", full)
	if err != nil {
		return err
	}
	defer stop()
	n := s.Concurrency
	samples := interleave(ctx, s.p, s.Rounds, s.Duration,
		contender{"get", n, full.operation(full.base, n, nil), cpu},
		contender{"get-conditional", n, conditional.operation(conditional.base, n, nil), cpu},
		control,
	)
	get, cond, bare := summarize(samples[0], samples[2]), summarize(samples[1], samples[0]), summarize(samples[2], nil)
	s.add(
		newFigure("get: server CPU vs. bare", get.CPURatio, "×", "%.1f µs beside %.1f µs; %.0f/s, p99 %.0f µs, %d errors", get.CPU, bare.CPU, get.Rate, get.P99, get.Errors).withMax(1.2),
		newFigure("get-conditional: server CPU beside get", cond.CPURatio, "×", "%.1f µs; %.0f/s, %d errors", cond.CPU, cond.Rate, cond.Errors).withMax(1),
	)
	return ctx.Err()
}
