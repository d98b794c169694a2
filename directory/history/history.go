// Package history counts what happens in a directory, per day, for the last days.
package history

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const (
	// Days is the number of days that are kept.
	Days = 30

	saveEvery = time.Minute // a crash loses the counts of this time
	keep      = Days * 24 * time.Hour
)

// Kind is what is counted.
type Kind int

// The kinds.
const (
	Registered Kind = iota // new cards, and cards that are back after they expired
	Searched               // pages of results
	Reported               // reports of cards
	kinds
)

// Day has the counts of one day in UTC.
type Day struct {
	Date   string     `json:"date"` // such as 2026-01-31
	Counts [kinds]int `json:"counts"`
}

// History counts per day. It is safe for concurrent use. The zero value is ready to use.
type History struct {
	mu      sync.Mutex
	days    []Day // oldest first, at most Days; days without events are missing
	changed bool
}

// Add counts an event.
func (h *History) Add(k Kind, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	date := now.UTC().Format(time.DateOnly)
	i, ok := slices.BinarySearchFunc(h.days, date, compareDate)
	if !ok { // the clock may have gone back
		h.days = slices.Insert(h.days, i, Day{Date: date})
		if len(h.days) > Days {
			h.days = h.days[1:]
			i--
		}
	}
	if i >= 0 {
		h.days[i].Counts[k]++
		h.changed = true
	}
}

func compareDate(d Day, date string) int { return strings.Compare(d.Date, date) }

// List returns the last [Days] days, oldest first, also those without events.
func (h *History) List(now time.Time) []Day {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Day, 0, Days)
	for i := range Days {
		day := Day{Date: now.UTC().AddDate(0, 0, i+1-Days).Format(time.DateOnly)}
		if at := slices.IndexFunc(h.days, func(d Day) bool { return d.Date == day.Date }); at >= 0 {
			day = h.days[at]
		}
		list = append(list, day)
	}
	return list
}

// Keep stores the counts in a record until ctx ends. It first adds the counts that are stored there.
func (h *History) Keep(ctx context.Context, records store.Records, ns, key string, log *slog.Logger) {
	if rec, err := records.Get(ctx, ns, key, time.Now()); err == nil {
		h.load(rec.Body)
	}
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if err := h.save(context.WithoutCancel(ctx), records, ns, key); err != nil {
			log.Warn("store the counts of the last days", "err", err)
		}
	}
}

// load adds stored counts. It ignores a record that it cannot read, because nothing but a chart depends on it.
func (h *History) load(body []byte) {
	var stored []Day
	if json.Unmarshal(body, &stored) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range stored {
		i, ok := slices.BinarySearchFunc(h.days, d.Date, compareDate)
		if !ok {
			h.days = slices.Insert(h.days, i, d)
			continue
		}
		for k, n := range d.Counts {
			h.days[i].Counts[k] += n
		}
	}
	h.days = h.days[max(0, len(h.days)-Days):]
}

// save stores the counts if they changed.
func (h *History) save(ctx context.Context, records store.Records, ns, key string) error {
	h.mu.Lock()
	changed := h.changed
	h.changed = false
	body, err := json.Marshal(h.days)
	h.mu.Unlock()
	if err != nil || !changed {
		return err
	}
	now := time.Now()
	err = records.Apply(ctx, []store.Change{{Record: store.Record{NS: ns, Key: key, Body: body, Expires: now.Add(keep)}, IfRev: store.Any}}, now)
	if err != nil {
		h.mu.Lock()
		h.changed = true
		h.mu.Unlock()
	}
	return err
}
