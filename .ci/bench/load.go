package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// operation does one thing for one worker. Calls for the same worker never overlap.
type operation func(ctx context.Context, worker int) error

// maxErrorsInRow is how many errors in a row stop a worker: otherwise it would call a dead server in a busy loop.
const maxErrorsInRow = 100

// drive calls op from every worker until d has passed or ctx ends. A failed call does not count as an operation.
func drive(ctx context.Context, workers int, d time.Duration, op operation) sample {
	type workerResult struct {
		took   []time.Duration
		errors int
		fault  string
	}
	results := make([]workerResult, workers)
	start := time.Now()
	end := start.Add(d)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			result := &results[w]
			errorsInRow := 0
			// Each worker makes at least one call: on a busy machine, a short d may pass before the worker starts.
			for began := time.Now(); ctx.Err() == nil; {
				err := op(ctx, w)
				done := time.Now()
				if err != nil {
					result.errors++
					errorsInRow++
					if result.fault == "" {
						result.fault = err.Error()
					}
				} else {
					result.took = append(result.took, done.Sub(began))
					errorsInRow = 0
				}
				if began = done; !done.Before(end) || errorsInRow >= maxErrorsInRow {
					break
				}
			}
		})
	}
	all.Wait()
	s := sample{Elapsed: time.Since(start)}
	var took []time.Duration
	for _, t := range results {
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

// contender is one of the operations that [interleave] compares.
type contender struct {
	name    string
	workers int
	op      operation
	cpu     func() time.Duration // processor time used so far; nil if it is unknown
}

func (c contender) runRound(ctx context.Context, d time.Duration) sample {
	if c.cpu == nil {
		return drive(ctx, c.workers, d, c.op)
	}
	before := c.cpu()
	s := drive(ctx, c.workers, d, c.op)
	s.CPU = c.cpu() - before
	return s
}

// interleave runs the contenders in turn, for a number of rounds, so that a change of the machine's speed affects all
// of them. Before that, each contender has a short warm-up round, which does not count. The outer index of the result
// is the contender.
func interleave(ctx context.Context, p *progress, rounds int, d time.Duration, contenders ...contender) [][]sample {
	for _, c := range contenders {
		p.say("%s: warm up", c.name)
		c.runRound(ctx, d/4)
	}
	out := make([][]sample, len(contenders))
	for r := range rounds {
		for i, c := range contenders {
			if ctx.Err() != nil {
				return out
			}
			p.say("%s: round %d of %d", c.name, r+1, rounds)
			out[i] = append(out[i], c.runRound(ctx, d))
		}
	}
	return out
}
