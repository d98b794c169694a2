// Package history counts what happens in a directory on each of the last [Days] days.
package history

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	// Days is the number of days whose counts are kept.
	Days = 30

	saveEvery = time.Minute           // a crash loses the counts since the last save
	keep      = Days * 24 * time.Hour // how long the record lives after a save
)

// Kind is a kind of event that is counted.
type Kind int

// The kinds.
const (
	Registered Kind = iota // new cards, except those that return while their id is still reserved for them
	Searched               // pages of results
	Reported               // reports about cards
	kinds                  // the number of kinds
)

// Day holds the counts of one day in UTC.
type Day struct {
	Date   string     `json:"date"` // such as 2026-01-31
	Counts [kinds]int `json:"counts"`
}

// History counts per day. Processes may share a record, which then has their sums. History is safe for concurrent use.
// The zero value is ready to use.
type History struct {
	mu     sync.Mutex
	stored []Day // of all processes, as this process last read or wrote them
	added  []Day // what this process counted since then
}

// Add counts an event.
func (h *History) Add(k Kind, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	event := Day{Date: now.UTC().Format(time.DateOnly)}
	event.Counts[k] = 1
	h.added = sum(h.added, []Day{event})
}

// sum returns the sums of two lists, for at most the last [Days] days that have any. Lists are in the order of dates, without empty
// days.
func sum(a, b []Day) []Day {
	all := slices.Clone(a)
	for _, d := range b {
		i, ok := slices.BinarySearchFunc(all, d.Date, func(d Day, date string) int { return strings.Compare(d.Date, date) })
		if !ok { // insert instead of append, because the clock may have gone back
			all = slices.Insert(all, i, Day{Date: d.Date})
		}
		for k, n := range d.Counts {
			all[i].Counts[k] += n
		}
	}
	return all[max(0, len(all)-Days):]
}

// List returns the last [Days] days, oldest first, including those without events.
func (h *History) List(now time.Time) []Day {
	h.mu.Lock()
	defer h.mu.Unlock()
	days, list := sum(h.stored, h.added), make([]Day, 0, Days)
	for i := range Days {
		day := Day{Date: now.UTC().AddDate(0, 0, i+1-Days).Format(time.DateOnly)}
		if at := slices.IndexFunc(days, func(d Day) bool { return d.Date == day.Date }); at >= 0 {
			day = days[at]
		}
		list = append(list, day)
	}
	return list
}

// Keep adds the counts to a record immediately, then every minute, and a last time when ctx ends. It also reads what other
// processes have counted.
func (h *History) Keep(ctx context.Context, records store.Records, ns, key string, log *slog.Logger) {
	tick := time.Tick(saveEvery)
	for {
		if err := store.Retry(func() error { return h.save(context.WithoutCancel(ctx), records, ns, key) }); err != nil {
			log.Warn("cannot store the counts of the last days", "err", err)
		}
		if ctx.Err() != nil {
			return
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// save adds the counts to the record. If another process changes the record meanwhile, save fails with
// store.ErrConflict and adds nothing.
func (h *History) save(ctx context.Context, records store.Records, ns, key string) error {
	now := time.Now()
	rec, err := records.Get(ctx, ns, key, now)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	var stored []Day
	if json.Unmarshal(rec.Body, &stored) != nil {
		stored = nil // no record, or an unreadable one: only a chart depends on it
	}
	h.mu.Lock()
	added := h.added
	h.stored, h.added = sum(stored, added), nil
	body := wire.MustMarshal(h.stored)
	h.mu.Unlock()
	if len(added) == 0 {
		return nil
	}
	change := store.Change{Record: store.Record{NS: ns, Key: key, Body: body, Expires: now.Add(keep)}, IfRev: rec.Rev}
	if err = records.Apply(ctx, []store.Change{change}, now); err != nil {
		h.mu.Lock()
		h.stored, h.added = stored, sum(added, h.added)
		h.mu.Unlock()
	}
	return err
}
