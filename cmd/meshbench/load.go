package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// operation does one thing for one worker. No two calls for the same worker overlap.
type operation func(ctx context.Context, worker int) error

// hopeless is how many errors in a row end a worker: a server that is gone would be asked in a busy loop.
const hopeless = 100

// drive calls op from every worker until d has passed or ctx ends. Operations that fail count as errors and nowhere
// else.
func drive(ctx context.Context, workers int, d time.Duration, op operation) sample {
	type tally struct {
		took   []time.Duration
		errors int
		fault  string
	}
	tallies := make([]tally, workers)
	start := time.Now()
	end := start.Add(d)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			t := &tallies[w]
			row := 0
			// Each worker makes one call at least: on a machine that does much else, a short time may be over by now.
			for now := time.Now(); ctx.Err() == nil; {
				err := op(ctx, w)
				done := time.Now()
				if err != nil {
					t.errors++
					row++
					if t.fault == "" {
						t.fault = err.Error()
					}
				} else {
					t.took = append(t.took, done.Sub(now))
					row = 0
				}
				if now = done; !now.Before(end) || row >= hopeless {
					break
				}
			}
		})
	}
	all.Wait()
	s := sample{Elapsed: time.Since(start)}
	var took []time.Duration
	for _, t := range tallies {
		took = append(took, t.took...)
		s.Errors += t.errors
		if s.Fault == "" {
			s.Fault = t.fault
		}
	}
	slices.Sort(took)
	s.Ops, s.P50, s.P99 = len(took), quantile(took, 0.50), quantile(took, 0.99)
	return s
}

// contender is one of the things that rounds compare.
type contender struct {
	name    string
	workers int
	op      operation
	cpu     func() time.Duration // processor time used so far; nil: not known
}

func (c contender) round(ctx context.Context, d time.Duration) sample {
	if c.cpu == nil {
		return drive(ctx, c.workers, d, c.op)
	}
	before := c.cpu()
	s := drive(ctx, c.workers, d, c.op)
	s.CPU = c.cpu() - before
	return s
}

// interleave runs the contenders one after the other, rounds times, after a short round each that is thrown away.
// The machine's moods so fall on all of them. The outer index of the result is the contender.
func interleave(ctx context.Context, p *progress, rounds int, d time.Duration, contenders ...contender) [][]sample {
	for _, c := range contenders {
		p.say("%s: warm up", c.name)
		c.round(ctx, d/4)
	}
	out := make([][]sample, len(contenders))
	for r := range rounds {
		for i, c := range contenders {
			if ctx.Err() != nil {
				return out
			}
			p.say("%s: round %d of %d", c.name, r+1, rounds)
			out[i] = append(out[i], c.round(ctx, d))
		}
	}
	return out
}
