package main

import (
	"context"
	"path/filepath"
	"time"
)

// measure sends traffic from s.Concurrency workers to the server under test and, in turn, to a control server that
// repeats a response of that server. cpu returns the processor time of the server under test.
func (s *study) measure(ctx context.Context, name string, tr traffic, cpu func() time.Duration) (outcome, error) {
	control, stop, err := s.newControl(ctx, name, tr)
	if err != nil {
		return outcome{}, err
	}
	defer stop()
	tested := contender{name, s.Concurrency, tr.operation(tr.base, s.Concurrency, tr.check), cpu}
	samples := interleave(ctx, s.p, s.Rounds, s.Duration, tested, control)
	return summarize(samples[0], samples[1]), ctx.Err()
}

// newControl starts a control server that repeats a response to the given traffic. It returns the server as a
// contender, and a function that stops it.
func (s *study) newControl(ctx context.Context, name string, tr traffic) (contender, func() error, error) {
	a, err := tr.sampleAnswer(ctx)
	if err != nil {
		return contender{}, nil, err
	}
	script := newScript(a)
	if tr.durable {
		script.Commit = filepath.Join(s.dir, name+".control.db")
	}
	srv, err := startControl(ctx, script)
	if err != nil {
		return contender{}, nil, err
	}
	return contender{name + " (bare)", s.Concurrency, tr.operation(srv.url(), s.Concurrency, nil), srv.cpu}, srv.stop, nil
}

// outcome has the medians over the rounds of a contender, in microseconds except for the rate.
type outcome struct {
	Rate     float64 // operations per second
	P50, P99 float64
	CPU      float64 // the server's processor time for one operation
	// Ratios to the control, if there is one: medians of the rounds' ratios.
	RateRatio, CPURatio float64

	Errors int
	Fault  string // the first error
}

// summarize returns the outcome of rounds. control has the rounds of the control, if there is one.
func summarize(rounds, control []sample) outcome {
	o := outcome{
		Rate:      medianOf(rounds, sample.rate),
		P50:       medianOf(rounds, func(s sample) float64 { return micros(s.P50) }),
		P99:       medianOf(rounds, sample.p99),
		CPU:       medianOf(rounds, sample.cost),
		RateRatio: ratio(rounds, control, sample.rate),
		CPURatio:  ratio(rounds, control, sample.cost),
	}
	for _, s := range rounds {
		o.Errors += s.Errors
		if o.Fault == "" {
			o.Fault = s.Fault
		}
	}
	return o
}
