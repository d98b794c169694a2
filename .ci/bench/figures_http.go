package main

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"time"
)

// measureHTTP registers filledCards cards before it measures, and gets the first lookupCards of them.
const (
	filledCards = 10_000
	lookupCards = 1000
	pageQueries = 160 // with more, some pages would have fewer than 20 of the cards
)

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
	s.p.say("http: register %d cards", filledCards)
	if err := b.fill(ctx); err != nil {
		return err
	}
	if err := s.measureLookups(ctx, b, srv.cpu); err != nil {
		return err
	}
	if err := s.measurePages(ctx, b, srv.cpu); err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		traffic
		minRate float64 // lowest accepted throughput relative to the control (bare); 0 for no target
	}{
		{"register", b.registrations(false), 0.6},
		{"register-proven", b.registrations(true), 0},
		{"list", b.eachOf("/agents", url.Values{"capability": {capability(3)}, "limit": {"20"}}), 0.65},
		{"search", b.eachOf("/agents", url.Values{"q": {wordOf(0)}, "capability": {capability(3)}, "limit": {"20"}}), 0.55},
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

// measurePages compares pages of 20 cards that the server does not keep, because pageQueries queries are asked in turn,
// with pages that it keeps, and measures a page of the feed.
func (s *study) measurePages(ctx context.Context, b *bench, cpu func() time.Duration) error {
	var searches []url.Values
	for i := range pageQueries {
		searches = append(searches, url.Values{"q": {wordOf(uint64(i))}, "limit": {"20"}})
	}
	lists := capabilityQueries()
	changes := b.eachOf("/changes", url.Values{"limit": {"100"}})
	var all []contender
	for _, t := range []traffic{b.eachOf("/agents", lists[3]), b.eachOf("/agents", lists...), b.eachOf("/agents", searches[3]), b.eachOf("/agents", searches...), changes} {
		all = append(all, contender{"pages", s.Concurrency, t.operation(t.base, s.Concurrency, nil), cpu})
	}
	samples := interleave(ctx, s.p, s.Rounds, s.Duration, all...)
	list, search, feed := summarize(samples[1], samples[0]), summarize(samples[3], samples[2]), summarize(samples[4], nil)
	page, err := changes.sampleAnswer(ctx)
	if err != nil {
		return err
	}
	s.add(
		newFigure("list: server CPU of a new page beside a kept one", list.CPURatio, "×", "%.1f µs; %.0f/s, %d errors %s", list.CPU, list.Rate, list.Errors, list.Fault).withMax(1.5),
		newFigure("search: server CPU of a new page beside a kept one", search.CPURatio, "×", "%.1f µs; %.0f/s, %d errors %s", search.CPU, search.Rate, search.Errors, search.Fault).withMax(2),
		newFigure("changes: server CPU of a page", feed.CPU, "µs", "%d bytes; %.0f/s, %d errors %s", len(page.Body), feed.Rate, feed.Errors, feed.Fault).withMax(600),
	)
	return ctx.Err()
}

// capabilityQueries returns a query for each of the pageQueries most frequent capabilities.
func capabilityQueries() (list []url.Values) {
	for i := range pageQueries {
		list = append(list, url.Values{"capability": {capability(i)}, "limit": {"20"}})
	}
	return list
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
