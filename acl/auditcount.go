package acl

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	maxCounts     = 1000 // sums in memory; further events of a kind and rule share one sum without a subject
	countsPerHour = 60   // sums that are stored per hour on average, so that a flood cannot displace decisions from the log
)

// counts holds the sums that wait to be stored. A sum is an audit entry that stands for many equal events.
type counts struct {
	mu   sync.Mutex
	sums map[AuditEntry]AuditEntry // by the fields that all events of a sum share

	budget int       // number of sums that may be stored now
	filled time.Time // when budget last grew
}

func (c *counts) add(e AuditEntry) {
	key := AuditEntry{Kind: e.Kind, Subject: e.Subject, Rule: e.Rule, By: cmp.Or(e.By, ByRule), Note: e.Note}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum, known := c.sums[key]
	if !known && len(c.sums) >= maxCounts {
		key.Subject, key.Note = "", "many"
		sum, known = c.sums[key]
	}
	if !known {
		sum = key
		sum.At = e.At
	}
	sum.Count++
	sum.Until = e.At
	c.sums[key] = sum
}

// Recent returns at most limit sums that are not stored yet, newest first.
func (a *Audit) Recent(limit int) []AuditEntry {
	a.counts.mu.Lock()
	list := slices.Collect(maps.Values(a.counts.sums))
	a.counts.mu.Unlock()
	slices.SortFunc(list, func(x, y AuditEntry) int { return y.Until.Compare(x.Until) })
	return list[:min(limit, len(list))]
}

// take removes and returns the sums that may be stored now, largest first. last is set for the final call, when the
// process ends: then the budget does not matter, and countsPerHour sums may be stored.
func (c *counts) take(now time.Time, last bool) []AuditEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if grown := int(now.Sub(c.filled) / (time.Hour / countsPerHour)); grown > 0 {
		c.budget = min(countsPerHour, c.budget+grown)
		c.filled = now
	}
	limit := c.budget
	if last {
		limit = countsPerHour
	}
	list := slices.Collect(maps.Values(c.sums))
	slices.SortFunc(list, func(x, y AuditEntry) int { return cmp.Compare(y.Count, x.Count) })
	list = list[:min(limit, len(list))]
	for _, e := range list {
		delete(c.sums, e.sumKey())
	}
	c.budget = max(0, c.budget-len(list))
	return list
}

// giveBack adds sums that take removed, but that could not be stored.
func (c *counts) giveBack(list []AuditEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range list {
		if later, ok := c.sums[e.sumKey()]; ok {
			e.Count, e.Until = e.Count+later.Count, later.Until
		}
		c.sums[e.sumKey()] = e
	}
	c.budget += len(list)
}

func (e AuditEntry) sumKey() AuditEntry {
	e.At, e.Until, e.Count = time.Time{}, time.Time{}, 0
	return e
}

// flush stores the sums that may be stored now. last is set when the process ends.
func (a *Audit) flush(ctx context.Context, now time.Time, last bool) error {
	list := a.counts.take(now, last)
	err := a.Add(ctx, list...)
	if err != nil {
		a.counts.giveBack(list)
	}
	return err
}
