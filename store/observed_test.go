package store_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestObserved checks that each committed unit is reported once, with the bodies of its records, whichever method
// committed it. A unit that was refused, or was applied before, is not reported.
func TestObserved(t *testing.T) {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := store.Observe(db)
	if store.Observe(s) != s {
		t.Error("a store that reports its commits was wrapped again")
	}
	var seen []string
	s.OnCommit(func(changes []store.Change) {
		for _, c := range changes {
			seen = append(seen, c.Record.Key+"="+string(c.Record.Body))
		}
	})
	ctx, now := t.Context(), time.Now()
	put := func(key string) []store.Change {
		return []store.Change{{Record: store.Record{NS: "test", Key: key, Body: []byte("body of " + key)}}}
	}
	conv := store.Conversation{Key: store.ConvKey{Peer: "p", ID: "c"}, Body: []byte("{}"), Open: true}
	step := func(key string) error {
		_, err := s.Steps().Apply(ctx, store.Step{
			Conv: &conv, Records: put(key), Replay: &store.Replay{Sender: "p", MessageID: "m", Conv: conv.Key, Status: 200}, Now: now,
		})
		return err
	}
	var card store.Card
	for _, c := range []struct {
		name string
		do   func() error
		want string // the key that is reported; "" for none
		err  error
	}{
		{"record", func() error { return s.Records().Apply(ctx, put("record"), now) }, "record", nil},
		{"record that is there", func() error { return s.Records().Apply(ctx, put("record"), now) }, "", store.ErrConflict},
		{"step", func() error { return step("step") }, "step", nil},
		{"step again", func() error { return step("again") }, "", nil},
		{"card", func() (err error) {
			card, err = s.Cards().Put(ctx, store.PutCard{Card: store.Card{ID: "card"}, Records: put("card"), Now: now})
			return err
		}, "card", nil},
		{"card that is there", func() error {
			_, err := s.Cards().Put(ctx, store.PutCard{Card: store.Card{ID: "card"}, Records: put("other"), Now: now})
			return err
		}, "", store.ErrConflict},
		{"withdrawal", func() error { return s.Cards().Withdraw(ctx, "card", card.Rev, now, put("withdrawal"), now) }, "withdrawal", nil},
		{"removal", func() error {
			row, err := s.Steps().Conversation(ctx, conv.Key, now)
			if err != nil {
				return err
			}
			return s.Steps().Forget(ctx, conv.Key, row.Rev, put("removal"), now)
		}, "removal", nil},
		{"nothing", func() error { return s.Records().Apply(ctx, nil, now) }, "", nil},
	} {
		seen = nil
		if err := c.do(); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		switch {
		case c.want == "" && len(seen) > 0:
			t.Errorf("%s: reported %q, want nothing", c.name, seen)
		case c.want != "" && (len(seen) != 1 || seen[0] != c.want+"=body of "+c.want):
			t.Errorf("%s: reported %q", c.name, seen)
		}
	}
}
