package main

import (
	"context"
	"errors"
	"path/filepath"
)

// lookupCards is the number of cards in the directory of the http part.
const lookupCards = 1000

// minRates are the lowest accepted throughputs of the scenarios, relative to the control (bare).
var minRates = map[string]float64{"register": 0.6, "list": 0.65, "search": 0.55}

func (s *study) measureHTTP(ctx context.Context) (err error) {
	srv, err := s.mesh.serve(ctx, filepath.Join(s.dir, "http"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	b, err := srv.bench("meshbench-http-credential", lookupCards, s.Concurrency)
	if err != nil {
		return err
	}
	t := target{bench: b, dir: s.dir, cpu: srv.cpu}
	if err := s.measureLookups(ctx, t); err != nil {
		return err
	}
	for _, name := range []string{"register", "register-proven", "list", "search"} {
		sc, err := findScenario(name)
		if err != nil {
			return err
		}
		r, err := t.measure(ctx, s.p, sc, true, s.Rounds, s.Duration)
		if err != nil {
			return err
		}
		o := r.outcome()
		f := newFigure(name+": throughput beside bare", o.RateRatio, "×", "%.0f/s, p99 %.0f µs, %.1f µs server CPU, %.2f × bare, %d errors %s", o.Rate, o.P99, o.CPU, o.CPURatio, o.Errors, o.Fault)
		if bound, ok := minRates[name]; ok {
			f = f.withMin(bound)
		}
		s.add(f)
	}
	return nil
}

// measureLookups compares GET of a card, full and conditional, with a plain server, all in turn.
func (s *study) measureLookups(ctx context.Context, t target) error {
	full, err := t.bench.prepareGet(ctx)
	if err != nil {
		return err
	}
	conditional, err := t.bench.prepareGetConditional(ctx)
	if err != nil {
		return err
	}
	control, stop, err := t.control(ctx, "get", full)
	if err != nil {
		return err
	}
	defer stop()
	n := t.bench.workers
	got := interleave(ctx, s.p, s.Rounds, s.Duration,
		contender{"get", n, full.operation(full.base, n, nil), t.cpu},
		contender{"get-conditional", n, conditional.operation(conditional.base, n, nil), t.cpu},
		control,
	)
	get, cond, bare := rounds{"get", got[0], got[2]}.outcome(), rounds{"get-conditional", got[1], got[0]}.outcome(), rounds{"bare", got[2], nil}.outcome()
	s.add(
		newFigure("get: server CPU beside bare", get.CPURatio, "×", "%.1f µs beside %.1f µs; %.0f/s, p99 %.0f µs, %d errors", get.CPU, bare.CPU, get.Rate, get.P99, get.Errors).withMax(1.2),
		newFigure("get-conditional: server CPU beside get", cond.CPURatio, "×", "%.1f µs; %.0f/s, %d errors", cond.CPU, cond.Rate, cond.Errors).withMax(1),
	)
	return ctx.Err()
}
