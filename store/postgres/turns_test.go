//go:build slow

package postgres

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestRoundTrips counts the round trips of each call.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	proxy, url := newCutter(t, pgtest.Database(t))
	s := open(t, Config{URL: url})
	ctx, cards, steps, records := t.Context(), s.Cards(), s.Steps(), s.Records()
	id := func(i int) string { return fmt.Sprint("am_", i) }
	key := func(i int) store.ConvKey { return store.ConvKey{Peer: "am_p", ID: fmt.Sprint(i)} }
	step := func(i int) store.Step {
		return store.Step{
			Conv: &store.Conversation{Key: key(i), Terms: []string{"peer:p"}, Open: true}, Append: []store.Entry{{MessageID: id(i)}, {Out: true, Raw: []byte("answer")}},
			Replay:  &store.Replay{Sender: "am_p", MessageID: id(i), Conv: key(i), Answer: []byte("answer"), Expires: now.Add(time.Hour)},
			Records: []store.Change{put(id(i))}, Now: now,
		}
	}
	card := func(i int) store.Card {
		return store.Card{ID: id(i), Terms: []string{"cap:x"}, Counts: []string{"host:h"}, Expires: now.Add(time.Hour)}
	}
	for _, call := range []struct {
		name string
		want int64
		do   func(i int) error // i counts up
	}{
		{"Steps.Apply", 2, func(i int) error { _, err := steps.Apply(ctx, step(i)); return err }},
		{"Steps.Apply of a repeat", 3, func(i int) error { // finds the entry that is the answer, and ends the transaction
			_, err := steps.Apply(ctx, step(i))
			return err
		}},
		{"Steps.Apply with an answer", 2, func(i int) error {
			answer := &store.Replay{Sender: "am_p", MessageID: id(i), Conv: key(i), Status: 200, Answer: []byte("later")}
			_, err := steps.Apply(ctx, store.Step{Conv: &store.Conversation{Key: key(i), Rev: store.Any, Open: true}, Answer: answer, Now: now})
			return err
		}},
		{"FindReplay", 2, func(i int) error { _, err := steps.FindReplay(ctx, "am_p", id(i), now); return err }},
		{"Conversation", 1, func(i int) error { _, err := steps.Conversation(ctx, key(i), now); return err }},
		{"Conversations", 1, func(int) error { _, err := steps.Conversations(ctx, "peer:p", 0, 10, now); return err }},
		{"Transcript", 2, func(i int) error { _, err := steps.Transcript(ctx, key(i), 0, 10); return err }},
		{"Forget", 3, func(i int) error { return steps.Forget(ctx, key(i), store.Any, nil, now) }}, // finds the replay records
		{"Put", 2, func(i int) error { _, err := cards.Put(ctx, store.PutCard{Card: card(i), Now: now}); return err }},
		{"Put with a quota", 3, func(i int) error { // counts the cards
			quotas := []store.Quota{{Key: "host:h", Max: 100}}
			_, err := cards.Put(ctx, store.PutCard{Card: card(i), IfRev: store.Any, Quotas: quotas, Now: now})
			return err
		}},
		{"Get of a card", 1, func(i int) error { _, err := cards.Get(ctx, id(i), now); return err }},
		{"List of cards", 2, func(int) error { // reads the feed of changes first
			_, err := cards.List(ctx, store.CardQuery{All: []string{"cap:x"}, Limit: 10, Now: now})
			return err
		}},
		{"Withdraw", 2, func(i int) error { return cards.Withdraw(ctx, id(i), store.Any, now.Add(time.Hour), nil, now) }},
		{"Records.Apply", 2, func(i int) error {
			return records.Apply(ctx, []store.Change{{Record: store.Record{NS: "x", Key: id(i)}}, {Record: store.Record{NS: "x", Key: "same"}, IfRev: store.Any}}, now)
		}},
		{"Records.Apply in a lane", 2, func(i int) error {
			return records.Apply(ctx, []store.Change{{Record: store.Record{NS: "x", Key: fmt.Sprint("lane", i), Due: now, Lane: "l"}}}, now)
		}},
		{"Records.Apply with a quota", 3, func(i int) error { // counts the records
			return records.Apply(ctx, []store.Change{{Record: store.Record{NS: "y", Key: id(i)}, Max: 100}}, now)
		}},
		{"Get of a record", 1, func(i int) error { _, err := records.Get(ctx, "x", id(i), now); return err }},
		{"List of records", 1, func(int) error { _, err := records.List(ctx, "x", "", "", 10, now); return err }},
	} {
		least := int64(math.MaxInt64) // the other times, a connection prepared statements, or was idle and was tested first
		for i := range 9 {
			before := proxy.turns.Load()
			if err := call.do(i); err != nil {
				t.Fatalf("%s: %v", call.name, err)
			}
			least = min(least, proxy.turns.Load()-before)
		}
		if least != call.want {
			t.Errorf("%s took %d round trips, want %d", call.name, least, call.want)
		}
	}
}
