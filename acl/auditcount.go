package acl

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	maxCounts  = 1000 // sums in memory; what comes above them is one sum without a subject
	countsHour = 60   // sums that are stored in an hour, so that a flood never pushes decisions out of the log
)

// counts are sums that wait to be stored.
type counts struct {
	mu   sync.Mutex
	sums map[AuditEntry]*AuditEntry // by what they have in common

	left   int       // sums that may be stored now
	filled time.Time // when left last grew
}

func newCounts() counts {
	return counts{sums: make(map[AuditEntry]*AuditEntry), left: countsHour, filled: time.Now()}
}

func (c *counts) add(e AuditEntry) {
	key := AuditEntry{Kind: e.Kind, Subject: e.Subject, Rule: e.Rule, By: cmp.Or(e.By, ByRule), Note: e.Note}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := c.sums[key]
	if sum == nil && len(c.sums) >= maxCounts {
		key.Subject = ""
		key.Note = "many"
		sum = c.sums[key]
	}
	if sum == nil {
		first := key
		first.At = e.At
		sum = &first
		c.sums[key] = sum
	}
	sum.Count++
	sum.Until = e.At
}

// Recent returns the sums that are not stored yet, the newest first: at most limit.
func (a *Audit) Recent(limit int) []AuditEntry {
	a.counts.mu.Lock()
	list := make([]AuditEntry, 0, len(a.counts.sums))
	for _, s := range a.counts.sums {
		list = append(list, *s)
	}
	a.counts.mu.Unlock()
	slices.SortFunc(list, func(x, y AuditEntry) int { return y.Until.Compare(x.Until) })
	return list[:min(limit, len(list))]
}

// take removes the sums that may be stored now, the largest first.
func (c *counts) take(now time.Time, all bool) []AuditEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if grown := int(now.Sub(c.filled) / (time.Hour / countsHour)); grown > 0 {
		c.left = min(countsHour, c.left+grown)
		c.filled = now
	}
	room := c.left
	if all { // the process ends
		room = countsHour
	}
	list := make([]AuditEntry, 0, len(c.sums))
	for _, s := range c.sums {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(x, y AuditEntry) int { return cmp.Compare(y.Count, x.Count) })
	list = list[:min(room, len(list))]
	for _, e := range list {
		delete(c.sums, e.common())
	}
	c.left = max(0, c.left-len(list))
	return list
}

// giveBack puts sums back that could not be stored.
func (c *counts) giveBack(list []AuditEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range list {
		if s := c.sums[e.common()]; s != nil {
			s.At, s.Count = e.At, s.Count+e.Count
			continue
		}
		c.sums[e.common()] = &e
	}
	c.left += len(list)
}

// common is what the parts of a sum have in common: its key.
func (e AuditEntry) common() AuditEntry {
	e.At, e.Until, e.Count = time.Time{}, time.Time{}, 0
	return e
}

// flush stores sums as entries.
func (a *Audit) flush(ctx context.Context, now time.Time, all bool) error {
	list := a.counts.take(now, all)
	err := a.Add(ctx, list...)
	if err != nil {
		a.counts.giveBack(list)
	}
	return err
}
